"""What is due next is told from the state alone, and following it leads to the end of a review without a fault."""

from __future__ import annotations

from typing import Any

import pytest

from counterproof_review.protocol import machine, next_step
from counterproof_review.protocol.events import AUTHOR, PARTIES, REVIEWER, STEWARD, Event
from counterproof_review.trust.ledger import WITNESS

NONCE = bytes(range(32))
PLAN, ROOT = "a" * 64, "b" * 64
ISSUE = {
    "packet_id": "1" * 16,
    "root": ROOT,
    "claim_id": PLAN,
    "supersedes": None,
    "gate": "replayed",
    "people": [],
    "deadline_days": 7.0,
}
# The words of what is told, who does it, and the entries that taking it makes.
WAY: tuple[tuple[str, str, list[tuple[str, dict[str, Any]]]], ...] = (
    ("review prereg", AUTHOR, [("prereg", {"plan_sha256": PLAN, "runs": 0})]),
    ("review commit", REVIEWER, [("commit", {"nonce_sha256": machine.nonce_digest(NONCE)})]),
    ("review witness", STEWARD, [(WITNESS, {})]),
    ("counterproof resume", AUTHOR, []),
    ("review issue", AUTHOR, [("issue", ISSUE)]),
    (
        "review accept",
        REVIEWER,
        [("accept", {"root": ROOT, "nonce": NONCE.hex(), "person": ["p"], "independent": True})],
    ),
    (
        "review replay",
        REVIEWER,
        [("start", {"attempt": 1, "root": ROOT}), ("end", {"attempt": 1, "status": "completed"})],
    ),
    ("review freeze", REVIEWER, [("freeze", {"root": ROOT, "attempts": [{"attempt": 1}]})]),
    ("review reveal", AUTHOR, [("reveal", {"keys": {"1" * 16: {}}})]),
    ("review challenge", REVIEWER, [("challenge", {"inside": 0})]),
    ("review verdict", REVIEWER, [("verdict", {"sha256": "c" * 64})]),
    ("review verdict", STEWARD, [("verdict", {"sha256": "c" * 64})]),
)


class Record:
    """Events that each see everything before them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.count = dict.fromkeys(PARTIES, 0)

    def enter(self, role: str, kind: str, body: dict[str, Any]) -> None:
        seen = {other: n for other, n in self.count.items() if other != role}
        time = "2026-01-01T00:00:00Z"
        self.events.append(Event(role, self.count[role], kind, body, f"key-{role}", "", time, seen))
        self.count[role] += 1

    @property
    def state(self) -> machine.State:
        return machine.run(self.events)


def test_who_follows_what_is_told_comes_to_the_end_without_a_fault() -> None:
    record = Record()
    for words, role, entries in WAY:
        told = next_step.due(record.state)
        assert any(words in step.command and step.role == role for step in told), (words, told)
        for kind, body in entries:
            record.enter(role, kind, body)
    assert record.state.faults == ()
    assert next_step.due(record.state) == []


def test_a_question_makes_a_new_packet_due() -> None:
    record = Record()
    for _, role, entries in WAY[:6]:
        for kind, body in entries:
            record.enter(role, kind, body)
    record.enter(REVIEWER, "question", {"nonce_sha256": machine.nonce_digest(NONCE)})
    (step,) = next_step.due(record.state)
    assert (step.role, "issue" in step.command) == (AUTHOR, True)


@pytest.mark.parametrize("start_only", [True, False])
def test_an_attempt_that_runs_or_was_cut_off_is_due_to_end(start_only: bool) -> None:
    record = Record()
    for _, role, entries in WAY[:6]:
        for kind, body in entries:
            record.enter(role, kind, body)
    if start_only:
        record.enter(REVIEWER, "start", {"attempt": 1, "root": ROOT})
    (step,) = next_step.due(record.state)
    assert step.command.endswith("review replay")
