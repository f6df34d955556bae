"""The protocol's machine: the one right way has no fault, every breach is one, and no event ever makes it raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterproof_review.protocol import events, machine
from counterproof_review.protocol.events import Event
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.ledger import FIRST, WITNESS, Entry

NONCE = bytes(range(32))
PLAN, ROOT, SECOND = "a" * 64, "b" * 64, "c" * 64


class Story:
    """Events that each see everything before them, as in a review without a breach."""

    def __init__(self) -> None:
        self.count = dict.fromkeys(events.PARTIES, 0)
        self.told: list[Event] = []

    def tell(self, role: str, kind: str, body: dict[str, Any], day: int = 1, **fields: Any) -> Story:
        seen = {other: n for other, n in self.count.items() if other != role}
        time = f"2026-01-{day:02d}T00:00:00Z"
        event = Event(role, self.count[role], kind, body, f"key-{role}", "", time, seen)
        self.told.append(replace(event, **fields))
        self.count[role] += 1
        return self

    def state(self) -> machine.State:
        return machine.run(self.told)


def issue(packet_id: str = "1" * 16, root: str = ROOT, supersedes: str | None = None) -> dict[str, Any]:
    return {
        "packet_id": packet_id,
        "root": root,
        "claim_id": PLAN,
        "supersedes": supersedes,
        "gate": "replayed",
        "people": ["p1", "p2"],
        "deadline_days": 7,
    }


ACCEPT = {"root": ROOT, "nonce": NONCE.hex(), "person": ["p9"], "independent": True}
END = {"attempt": 1, "status": "completed"}
FREEZE = {"root": ROOT, "attempts": [{"attempt": 1}]}
REVEAL = {"keys": {"1" * 16: {}}}


def until(kind: str) -> Story:
    """The right way up to and with one step."""
    story = Story()
    steps: list[tuple[str, str, dict[str, Any]]] = [
        ("author", events.PREREG, {"plan_sha256": PLAN, "runs": 0}),
        ("reviewer", events.COMMIT, {"nonce_sha256": machine.nonce_digest(NONCE)}),
        ("steward", WITNESS, {"ledger": "author", "seq": 0, "sha256": FIRST}),
        ("author", events.ISSUE, issue()),
        ("reviewer", events.ACCEPT, ACCEPT),
        ("reviewer", events.START, {"attempt": 1, "root": ROOT, "blocks": 6}),
        ("reviewer", events.END, END),
        ("reviewer", events.FREEZE, FREEZE),
        ("author", events.REVEAL, REVEAL),
        ("reviewer", events.CHALLENGE, {"inside": 0}),
        ("reviewer", events.VERDICT, {"sha256": "d" * 64}),
        ("steward", events.VERDICT, {"sha256": "d" * 64}),
    ]
    for role, name, body in steps:
        story.tell(role, name, body)
        if name == kind:
            return story
    return story


def test_the_right_way_has_no_fault() -> None:
    state = until("all").state()
    assert state.faults == ()
    assert len(state.verdicts) == 2
    assert state.level == "L3"


Change = Callable[[Story], Story]
BREACHES: dict[str, tuple[str, Change, str]] = {
    "reveal_before_freeze": (
        events.END,
        lambda s: s.tell("author", events.REVEAL, REVEAL),
        "before the estimates",
    ),
    "freeze_edited_after_reveal": (
        events.REVEAL,
        lambda s: s.tell("reviewer", events.FREEZE, FREEZE),
        "edited",
    ),
    "frozen_after_lost": (
        events.END,
        lambda s: s.tell("author", events.REVEAL, REVEAL).tell("reviewer", events.FREEZE, FREEZE),
        "frozen after the reveal",
    ),
    "reveal_that_never_saw_the_freeze": (
        events.FREEZE,
        lambda s: s.tell("author", events.REVEAL, REVEAL, seen={"reviewer": 0, "steward": 1}),
        "before the estimates were frozen",
    ),
    "issue_before_commit": (
        "nothing",
        lambda _: (
            Story()
            .tell("author", events.PREREG, {"plan_sha256": PLAN, "runs": 0})
            .tell("steward", WITNESS, {})
            .tell("author", events.ISSUE, issue())
        ),
        "committed to a nonce",
    ),
    "issue_before_witness": (
        events.COMMIT,
        lambda s: s.tell("author", events.ISSUE, issue()),
        "witnessed the preregistration",
    ),
    "issue_of_another_plan": (
        WITNESS,
        lambda s: s.tell("author", events.ISSUE, issue() | {"claim_id": SECOND}),
        "not about the plan",
    ),
    "prereg_after_runs": (
        "nothing",
        lambda _: Story().tell("author", events.PREREG, {"plan_sha256": PLAN, "runs": 3}),
        "after 3 runs",
    ),
    "no_cold_replay": (
        WITNESS,
        lambda s: s.tell("author", events.ISSUE, issue() | {"gate": "skipped"}),
        "cold replay",
    ),
    "second_packet_without_question": (
        events.ISSUE,
        lambda s: s.tell("author", events.ISSUE, issue("2" * 16, SECOND, "1" * 16)),
        "without a question",
    ),
    "packet_that_supersedes_nothing": (
        events.ISSUE,
        lambda s: s.tell("reviewer", events.QUESTION, {}).tell(
            "author", events.ISSUE, issue("2" * 16, SECOND)
        ),
        "does not supersede",
    ),
    "wrong_role": (events.END, lambda s: s.tell("author", events.FREEZE, FREEZE), "may not enter"),
    "reviewer_is_the_author": (
        events.ISSUE,
        lambda s: s.tell("reviewer", events.ACCEPT, ACCEPT, signer="key-author"),
        "one of the people",
    ),
    "reviewer_wrote_the_code": (
        events.ISSUE,
        lambda s: s.tell("reviewer", events.ACCEPT, ACCEPT | {"person": ["p9", "p2"]}),
        "one of the people",
    ),
    "another_nonce": (
        events.ISSUE,
        lambda s: s.tell("reviewer", events.ACCEPT, ACCEPT | {"nonce": "00" * 32}),
        "not the one committed",
    ),
    "another_packet": (
        events.ISSUE,
        lambda s: s.tell("reviewer", events.ACCEPT, ACCEPT | {"root": SECOND}),
        "another packet",
    ),
    "attempt_left_out": (
        events.END,
        lambda s: (
            s.tell("reviewer", events.START, {"attempt": 2, "root": ROOT, "blocks": 6})
            .tell("reviewer", events.END, END | {"attempt": 2})
            .tell("reviewer", events.FREEZE, FREEZE)
        ),
        "leave out an attempt",
    ),
    "attempt_without_an_end": (
        events.END,
        lambda s: s.tell("reviewer", events.START, {"attempt": 2, "root": ROOT, "blocks": 6}).tell(
            "reviewer", events.FREEZE, FREEZE
        ),
        "while one ran",
    ),
    "attempt_not_counted": (
        events.ACCEPT,
        lambda s: s.tell("reviewer", events.START, {"attempt": 2, "root": ROOT, "blocks": 6}),
        "missing from the count",
    ),
    "attempt_after_freeze": (
        events.FREEZE,
        lambda s: s.tell("reviewer", events.START, {"attempt": 2, "root": ROOT, "blocks": 6}),
        "after the estimates",
    ),
    "packet_not_opened": (
        events.FREEZE,
        lambda s: s.tell("author", events.REVEAL, {"keys": {}}),
        "not every packet",
    ),
    "steward_too_early": (
        events.FREEZE,
        lambda s: s.tell("steward", events.REVEAL, REVEAL, day=7),
        "before the deadline",
    ),
    "lost_too_early": (
        events.FREEZE,
        lambda s: s.tell("steward", events.LOST, {}, day=7),
        "before the deadline",
    ),
    "verdict_without_challenge": (
        events.REVEAL,
        lambda s: s.tell("reviewer", events.VERDICT, {"sha256": "d" * 64}),
        "before the claim was challenged",
    ),
    "two_verdicts": (
        events.CHALLENGE,
        lambda s: s.tell("reviewer", events.VERDICT, {"sha256": "d" * 64}).tell(
            "reviewer", events.VERDICT, {"sha256": "d" * 64}
        ),
        "two verdicts",
    ),
    "another_verdict": (
        events.CHALLENGE,
        lambda s: s.tell("reviewer", events.VERDICT, {"sha256": "d" * 64}).tell(
            "steward", events.VERDICT, {"sha256": "e" * 64}
        ),
        "different verdicts",
    ),
}


def take_all(told: list[Event]) -> machine.State:
    """Take steps only as they are due."""
    state = machine.State()
    for event in told:
        machine.due(state, event)
        state = machine.advance(state, event)
    return state


@pytest.mark.parametrize("name", sorted(BREACHES))
def test_every_breach_is_a_fault_and_is_not_due(name: str) -> None:
    kind, change, says = BREACHES[name]
    story = change(until(kind))
    faults = story.state().faults
    assert any(says in text for text in faults), faults
    with pytest.raises(TrustError, match="E_PROTOCOL"):
        take_all(story.told)


def test_the_steward_may_open_at_the_deadline() -> None:
    story = until(events.FREEZE).tell("steward", events.REVEAL, REVEAL, day=8)
    assert story.state().faults == ()
    lost = until(events.FREEZE).tell("steward", events.LOST, {}, day=8)
    assert lost.state().faults == ()
    assert lost.state().lost is not None


def test_reading_an_arm_lowers_the_level_and_is_no_fault() -> None:
    story = until(events.ACCEPT).tell("reviewer", events.UNBLIND, {"arm": "x"})
    assert (story.state().level, story.state().faults) == ("L1", ())


def test_a_new_packet_must_be_accepted_anew() -> None:
    story = until(events.ACCEPT).tell("reviewer", events.QUESTION, {})
    story.tell("author", events.ISSUE, issue("2" * 16, SECOND, "1" * 16))
    assert story.state().faults == ()
    story.tell("reviewer", events.START, {"attempt": 1, "root": SECOND, "blocks": 6})
    assert "not accepted" in story.state().faults[0]


def test_later_attempts_have_schedules_of_their_own() -> None:
    assert machine.attempt_nonce(NONCE, 1) == NONCE
    assert len({machine.attempt_nonce(NONCE, n) for n in range(1, 20)}) == 19


KINDS = st.sampled_from([*events.MAKERS, "unknown"])
ROLES = st.sampled_from(events.PARTIES)
BODIES = st.sampled_from(
    [
        {},
        issue(),
        ACCEPT,
        END,
        FREEZE,
        REVEAL,
        {"plan_sha256": PLAN, "runs": 0},
        {"sha256": "d" * 64},
        {"root": 3},
    ]
)


@given(st.lists(st.tuples(ROLES, KINDS, BODIES), max_size=30))
def test_any_sequence_of_events_gives_a_state_and_faults_never_go_away(
    moves: list[tuple[str, str, dict[str, Any]]],
) -> None:
    state, story = machine.State(), Story()
    for role, kind, body in moves:
        story.tell(role, kind, body)
        after = machine.advance(state, story.told[-1])
        assert after.faults[: len(state.faults)] == state.faults
        assert not (state.freeze and after.freeze is not state.freeze)
        assert not (state.reveal and after.reveal is not state.reveal)
        state = after


@given(st.permutations(range(12)))
def test_without_a_fault_the_seal_is_opened_after_the_freeze(order: list[int]) -> None:
    """In whatever order the steps of a right review are tried, what is due keeps freeze before reveal before verdict."""
    told = until("all").told
    state = machine.State()
    for index in order:
        try:
            machine.due(state, told[index])
        except TrustError:
            continue
        state = machine.advance(state, told[index])
    assert state.faults == ()
    assert not (state.reveal and not state.freeze)
    assert not (state.verdicts and not (state.reveal or state.lost))
    assert not (state.accept and not state.commit)


# -- order over three ledgers -----------------------------------------------------------------------------


def entry(role: str, place: int, kind: str, **body: Any) -> Entry:
    return Entry(place, FIRST, kind, role, "2026-01-01T00:00:00Z", body, "k", f"{role}-{place}")


def test_causes_come_before_effects() -> None:
    ledgers = {
        "author": [entry("author", 0, events.PREREG), entry("author", 1, events.ISSUE)],
        "reviewer": [
            entry("reviewer", 0, WITNESS, ledger="author", seq=1, sha256=FIRST),
            entry("reviewer", 1, events.ACCEPT),
        ],
        "steward": [entry("steward", 0, WITNESS, ledger="reviewer", seq=1, sha256=FIRST)],
    }
    found = [(e.role, e.seq) for e in events.in_order(ledgers)]
    assert found == [("author", 0), ("author", 1), ("reviewer", 0), ("reviewer", 1), ("steward", 0)]
    accept = events.in_order(ledgers)[3]
    assert dict(accept.seen) == {"author": 2, "steward": 0}


def test_a_future_that_is_not_there_is_refused() -> None:
    ledgers = {"steward": [entry("steward", 0, WITNESS, ledger="author", seq=4, sha256=FIRST)]}
    with pytest.raises(TrustError, match="E_CHAIN"):
        events.in_order(ledgers)


def test_a_foreign_entry_in_a_ledger_is_refused() -> None:
    with pytest.raises(TrustError, match="E_ROLE"):
        events.in_order({"author": [entry("reviewer", 0, events.COMMIT)]})
