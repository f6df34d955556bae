"""The chain of study starts of a store: `starts.jsonl`, one line a registered study, each naming the line before it.

A line is {"seq", "prev", "study", "experiment", "plan_sha256", "time_utc"} in canonical JSON; `prev` is the sha256 of
the line before it (64 zeros for the first). It is written before a study appears, so a study that was deleted still
shows, as a start without a folder. A chain that lost its end is seen by whoever noted its head elsewhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from counterproof.errors import EvidenceError
from counterproof.record import atomic, canonical
from counterproof.record.journal import now_utc
from counterproof.record.lock import FileLock
from counterproof.record.store import Store

NAME = "starts.jsonl"
TORN = "starts.torn-"
FIRST = "0" * 64
LOCK_SECONDS = 30.0
_TEXTS = ("prev", "study", "experiment", "plan_sha256", "time_utc")


@dataclass(frozen=True)
class Start:
    """One registered study. `sha256`: of its line."""

    seq: int
    study: str
    experiment: str
    plan_sha256: str
    sha256: str


def append(root: Path, study: str, experiment: str, plan_sha256: str) -> Start:
    """Enter the start of a study, flushed to the disk. Raises EvidenceError for a damaged chain.

    A last line without its end is what a harness left that was killed while it wrote, or a full disk: its study never
    appeared. It is kept in a file of its own, `starts.torn-N`, and taken off the chain.
    """
    with FileLock(root / ".starts.lock", wait_s=LOCK_SECONDS, what="the chain of study starts"):
        _set_aside(root)
        found = read(root)
        line = {
            "seq": len(found),
            "prev": found[-1].sha256 if found else FIRST,
            "study": study,
            "experiment": experiment,
            "plan_sha256": plan_sha256,
            "time_utc": now_utc(),
        }
        data = canonical.dumps(line)
        with (root / NAME).open("ab") as file:
            file.write(data + b"\n")
            file.flush()
            os.fsync(file.fileno())
    return Start(len(found), study, experiment, plan_sha256, canonical.sha256_bytes(data))


def read(root: Path) -> list[Start]:
    """The whole chain, verified; empty where there is none. Raises EvidenceError that names the line."""
    path = root / NAME
    lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
    if lines.pop():
        raise EvidenceError(f"{NAME}: the last line was cut off")
    found: list[Start] = []
    for number, data in enumerate(lines):
        found.append(_line(data, number, found[-1].sha256 if found else FIRST))
    return found


def _set_aside(root: Path) -> None:
    path = root / NAME
    data = path.read_bytes() if path.is_file() else b""
    whole = data.rfind(b"\n") + 1
    if whole == len(data):
        return
    number = 1 + len(list(root.glob(f"{TORN}*")))
    atomic.write_bytes(root / f"{TORN}{number}", data[whole:])
    with path.open("r+b") as file:
        file.truncate(whole)
        file.flush()
        os.fsync(file.fileno())


def entered(root: Path) -> list[Start]:
    """Every start of the chain but a last line that was cut off, which is none. Raises EvidenceError."""
    path = root / NAME
    data = path.read_bytes() if path.is_file() else b""
    found: list[Start] = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines()):
        found.append(_line(line, number, found[-1].sha256 if found else FIRST))
    return found


def vanished(store: Store) -> list[Start]:
    """Starts whose study is not in the store any more, or has another plan."""
    return [one for one in read(store.root) if _plan_sha256(store, one.study) != one.plan_sha256]


def _plan_sha256(store: Store, study: str) -> str | None:
    path = store.new_study(study).plan
    return canonical.sha256_file(path) if path.is_file() else None


def _line(data: bytes, number: int, before: str) -> Start:
    value = canonical.loads(data, name=f"{NAME}, line {number + 1}")
    if not isinstance(value, dict) or set(value) != {"seq", *_TEXTS}:
        raise EvidenceError(f"{NAME}, line {number + 1}: other fields than a start has")
    if any(not isinstance(value[name], str) for name in _TEXTS) or value["seq"] != number:
        raise EvidenceError(f"{NAME}, line {number + 1}: not start number {number}")
    if value["prev"] != before or canonical.dumps(value) != data:
        raise EvidenceError(f"{NAME}, line {number + 1}: does not follow from the line before it")
    return Start(
        number, value["study"], value["experiment"], value["plan_sha256"], canonical.sha256_bytes(data)
    )
