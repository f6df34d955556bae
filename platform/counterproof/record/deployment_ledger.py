"""`deployments.jsonl`: which configuration serves which scope, as a hash-chained ledger that only grows.

A chain alone cannot show that its end was cut off. So the newest entry's place and hash also stand in
`deployments.head.json`, and each entry about a study is named in that study's own journal (kind `deployed`): a ledger
that is shorter than either says, or that holds another entry in that place, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from counterproof.errors import EvidenceError
from counterproof.record import atomic, canonical, journal
from counterproof.record.journal import Journal
from counterproof.record.lock import FileLock
from counterproof.record.store import Store, StudyPaths

FILE_NAME = "deployments.jsonl"
HEAD_NAME = "deployments.head.json"
PROMOTED, ROLLED_BACK, DRILLED = "promoted", "rolled_back", "drilled"
OVERRIDE, EXPIRED, TORN = "override", "expired", "torn_tail"
KINDS = (PROMOTED, ROLLED_BACK, DRILLED, OVERRIDE, EXPIRED, TORN)
WITNESS = "deployed"
LOCK_SECONDS = 30.0

Event = Mapping[str, Any]


class DeploymentLedger:
    """The ledger of one store. Readers need no lock; a change holds `changing` from its check to its entry."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def path(self) -> Path:
        return self.root / FILE_NAME

    @property
    def head_path(self) -> Path:
        return self.root / HEAD_NAME

    def read(self) -> tuple[dict[str, Any], ...]:
        """All entries, oldest first; an absent ledger is empty. Raises EvidenceError for any that was changed,
        removed or moved, and for entries of a kind that this version does not know."""
        # The head first: an entry that arrives between the two reads then makes the ledger longer, which is allowed.
        head = self._head()
        events = journal.read(self.path).events
        if head is not None:
            _check_entry(events, head["seq"], head["hash"], HEAD_NAME)
        for event in events:
            if event["kind"] not in KINDS:
                raise EvidenceError(
                    f"{FILE_NAME} line {event['seq'] + 1} is of the unknown kind {event['kind']!r}",
                    details=["it was written by a newer counterproof; use that one"],
                )
        return events

    def changing(self) -> FileLock:
        """Held by whoever checks the ledger and then adds to it."""
        return FileLock(
            self.root / ".deployments.change.lock", wait_s=LOCK_SECONDS, what="the ledger of deployments"
        )

    def append(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Add one entry and flush it to the disk. Raises EvidenceError when the ledger was tampered with."""
        if kind not in KINDS:
            raise ValueError(f"{kind} is no kind of entry")
        self.root.mkdir(parents=True, exist_ok=True)
        self.read()
        event = Journal(self.path).append(kind, **fields)
        atomic.write_json(self.head_path, {"seq": event["seq"], "hash": event["hash"]})
        return event

    def _head(self) -> dict[str, Any] | None:
        if not self.head_path.is_file():
            return None
        head = canonical.read_json(self.head_path)
        if not isinstance(head, dict) or type(head.get("seq")) is not int or "hash" not in head:
            raise EvidenceError(f"{HEAD_NAME} does not have the form of a ledger's head")
        return head


def bear_witness(paths: StudyPaths, event: Event) -> None:
    """Name a ledger's entry in the journal of the study that it is about."""
    Journal(paths.journal).append(
        WITNESS, action=event["kind"], ledger_seq=event["seq"], ledger_hash=event["hash"]
    )


def check_witnesses(store: Store, events: tuple[dict[str, Any], ...]) -> int:
    """Every entry that a study's journal names must stand in its place. Returns how many were checked.

    Raises EvidenceError. A study whose own journal cannot be read bears no witness here; its own checks refuse it.
    """
    checked = 0
    for folder in store.study_folders():
        for seen in _witnessed(StudyPaths(folder)):
            _check_entry(events, seen["ledger_seq"], seen["ledger_hash"], f"the journal of {folder.name}")
            checked += 1
    return checked


def _witnessed(paths: StudyPaths) -> Iterable[dict[str, Any]]:
    try:
        found = journal.read(paths.journal).events
    except EvidenceError:
        return ()
    return [event for event in found if event["kind"] == WITNESS]


def _check_entry(events: tuple[dict[str, Any], ...], seq: int, digest: str, source: str) -> None:
    if seq >= len(events):
        raise EvidenceError(
            f"{FILE_NAME} was cut off: it has {len(events)} entries, {source} names number {seq}",
            details=["put the whole file back, e.g. from a backup; nothing is promoted or served meanwhile"],
        )
    if events[seq]["hash"] != digest:
        raise EvidenceError(f"{FILE_NAME} line {seq + 1} is another entry than the one {source} names")
