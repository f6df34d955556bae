"""A study's journal: append-only lines, each hashed over itself and its predecessor, each fsynced.

A line is canonical JSON `{"seq","prev","time_utc","kind",...,"hash"}`; `hash` is the sha256 over the
canonical JSON of the line without it. A process that dies while writing leaves at most one unfinished last
line: a reader recognises it by its missing line end, and the next writer sets it aside in a file of its own
and says so in the journal. Anything wrong before the last line is tampering.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import EvidenceError
from counterproof.record import atomic, canonical, injection
from counterproof.record.lock import FileLock

FILE_NAME = "journal.jsonl"
START = "0" * 64
RESERVED = frozenset({"seq", "prev", "time_utc", "kind", "hash"})


@dataclass(frozen=True)
class JournalContent:
    """The verified events, oldest first, and the bytes of an unfinished last line (b"" if none)."""

    events: tuple[dict[str, Any], ...]
    torn: bytes

    @property
    def head(self) -> str:
        """Hash of the newest event."""
        return str(self.events[-1]["hash"]) if self.events else START


def now_utc() -> str:
    """The wall-clock time as it is written into records, to the millisecond."""
    moment = injection.now()
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def read(path: Path) -> JournalContent:
    """Read and verify a journal. Raises EvidenceError that names the first bad line; a missing file is empty."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return JournalContent((), b"")
    end = data.rfind(b"\n") + 1
    events: list[dict[str, Any]] = []
    previous = START
    for number, line in enumerate(data[:end].splitlines()):
        event = _check_line(path.name, number, line, previous)
        previous = str(event["hash"])
        events.append(event)
    return JournalContent(tuple(events), data[end:])


class Journal:
    """The writing side. Safe against a second writer (file lock) and against a torn last line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        return self._path

    def events(self) -> tuple[dict[str, Any], ...]:
        """All verified events. Raises EvidenceError."""
        return read(self._path).events

    def append(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Add one event and flush it to the disk; returns it. Raises EvidenceError if the chain is broken."""
        if clash := RESERVED & fields.keys():
            raise ValueError(f"reserved journal fields: {sorted(clash)}")
        with FileLock(self._path.with_name(f".{self._path.name}.lock"), wait_s=30.0, what="the journal"):
            content = read(self._path)
            if content.torn:
                content = self._set_aside(content)
            return self._write(content, kind, fields)

    def _set_aside(self, content: JournalContent) -> JournalContent:
        number = 1 + sum(event["kind"] == "torn_tail" for event in content.events)
        kept = self._path.with_name(f"journal.torn-{number}")
        atomic.write_bytes(kept, content.torn)
        whole = self._path.stat().st_size - len(content.torn)
        with self._path.open("r+b") as stream:
            stream.truncate(whole)
            stream.flush()
            injection.flush(stream.fileno())
        digest = canonical.sha256_bytes(content.torn)
        self._write(
            JournalContent(content.events, b""),
            "torn_tail",
            {"file": kept.name, "bytes": len(content.torn), "sha256": digest},
        )
        return read(self._path)

    def _write(self, content: JournalContent, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        event: dict[str, Any] = {
            "seq": len(content.events),
            "prev": content.head,
            "time_utc": now_utc(),
            "kind": kind,
            **fields,
        }
        event["hash"] = canonical.sha256_json(event)
        new = not self._path.exists()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _write_all(descriptor, canonical.dumps(event) + b"\n")
            injection.flush(descriptor)
        finally:
            os.close(descriptor)
        if new:
            atomic.sync_folder(self._path.parent)
        return event


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _check_line(name: str, number: int, line: bytes, previous: str) -> dict[str, Any]:
    where = f"{name} line {number + 1}"
    event = canonical.loads(line, name=where)
    if not isinstance(event, dict) or not event.keys() >= RESERVED:
        raise EvidenceError(f"{where} is not a journal event")
    body = {key: value for key, value in event.items() if key != "hash"}
    if canonical.sha256_json(body) != event["hash"]:
        raise EvidenceError(f"{where} was changed: its hash does not fit its content")
    if canonical.dumps(event) != line:
        raise EvidenceError(f"{where} is not in canonical form")
    if event["seq"] != number or event["prev"] != previous:
        raise EvidenceError(f"{where} does not follow its predecessor: a line was removed, added or moved")
    return event
