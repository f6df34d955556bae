"""The protocol as a state machine: pure, total, and the same for what is due and for what went wrong.

`advance` takes any event in any state. What the protocol does not allow there becomes a fault, in words; a review with
a fault can only end INVALID. A step is due exactly when taking it adds no fault.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from counterproof_review.protocol import events
from counterproof_review.protocol.events import Event
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.ledger import WITNESS

DEFAULT_DEADLINE_DAYS = 7
FULL_LEVEL, UNBLINDED_LEVEL = "L3", "L1"


@dataclass(frozen=True)
class State:
    """Where a review stands. Every field is an event or several, in the order they came."""

    prereg: Event | None = None
    witnessed: Event | None = None  # the steward's entry that covers the prereg
    commit: Event | None = None
    issues: tuple[Event, ...] = ()
    accept: Event | None = None
    starts: tuple[Event, ...] = ()
    ends: tuple[Event, ...] = ()
    questions: tuple[Event, ...] = ()
    unblinded: tuple[Event, ...] = ()
    freeze: Event | None = None
    reveal: Event | None = None
    lost: Event | None = None
    challenge: Event | None = None
    verdicts: tuple[Event, ...] = ()
    authors: frozenset[str] = field(default_factory=frozenset)
    faults: tuple[str, ...] = ()

    @property
    def level(self) -> str:
        """The blinding level that was kept."""
        return UNBLINDED_LEVEL if self.unblinded else FULL_LEVEL

    @property
    def issue(self) -> Event | None:
        """The packet that stands: the last version."""
        return self.issues[-1] if self.issues else None

    @property
    def running(self) -> Event | None:
        """The attempt that has begun and not ended."""
        return self.starts[-1] if len(self.starts) > len(self.ends) else None

    def fault(self, text: str) -> State:
        return replace(self, faults=(*self.faults, text))


def run(found: Iterable[Event]) -> State:
    """The state after all events."""
    state = State()
    for event in found:
        state = advance(state, event)
    return state


def due(state: State, event: Event) -> None:
    """Raise TrustError E_PROTOCOL with the reason when `event` may not be taken now."""
    after = advance(state, event)
    if len(after.faults) > len(state.faults):
        raise TrustError("E_PROTOCOL", after.faults[len(state.faults)])


def advance(state: State, event: Event) -> State:
    """The state after one more event."""
    if event.role not in events.MAKERS.get(event.kind, ()):
        return state.fault(f"a {event.role} may not enter '{event.kind}'")
    try:
        return _STEPS[event.kind](state, event)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return state.fault(f"the {event.kind} of the {event.role} is malformed: {error!r}")


def _witness(state: State, event: Event) -> State:
    covers = event.role == events.STEWARD and state.prereg is not None and event.saw(state.prereg)
    return replace(state, witnessed=event) if covers and state.witnessed is None else state


def _prereg(state: State, event: Event) -> State:
    if state.prereg is not None:
        return state.fault("the plan was preregistered twice")
    if event.body["runs"]:
        state = state.fault(f"preregistered after {event.body['runs']} runs had been made")
    return replace(state, prereg=event, authors=state.authors | {event.signer})


def _commit(state: State, event: Event) -> State:
    if state.commit is not None:
        return state.fault("the reviewer committed to a nonce twice")
    return replace(state, commit=event)


def _issue(state: State, event: Event) -> State:
    body, before = event.body, state.issue
    if state.prereg is None or body["claim_id"] != state.prereg.body["plan_sha256"]:
        state = state.fault("the packet is not about the plan that was preregistered")
    elif state.witnessed is None or not event.saw(state.witnessed):
        state = state.fault("the packet was issued before the steward had witnessed the preregistration")
    if state.commit is None or not event.saw(state.commit):
        state = state.fault("the packet was issued before the reviewer had committed to a nonce")
    if state.freeze is not None:
        state = state.fault("a packet was issued after the estimates were frozen")
    if body["supersedes"] != (before.body["packet_id"] if before else None):
        state = state.fault("the packet does not supersede the one before it")
    if before is not None and not any(event.saw(question) for question in state.questions):
        state = state.fault("a second packet was issued without a question")
    if body["gate"] != "replayed":
        state = state.fault("the packet was issued without a cold replay")
    return replace(state, issues=(*state.issues, event), accept=None, authors=state.authors | {event.signer})


def _accept(state: State, event: Event) -> State:
    body, issue = event.body, state.issue
    if issue is None or not event.saw(issue) or body["root"] != issue.body["root"]:
        return state.fault("the reviewer accepted another packet than the one that was issued")
    if state.accept is not None:
        return state.fault("the packet was accepted twice")
    if (
        state.commit is None
        or nonce_digest(bytes.fromhex(body["nonce"])) != state.commit.body["nonce_sha256"]
    ):
        state = state.fault("the reviewer's nonce is not the one committed to")
    if event.signer in state.authors or set(body["person"]) & set(issue.body["people"]):
        state = state.fault("the reviewer is one of the people of the record")
    if body["independent"] is not True:
        state = state.fault("the reviewer does not declare to be independent")
    return replace(state, accept=event)


def _start(state: State, event: Event) -> State:
    if state.accept is None or event.body["root"] != state.accept.body["root"]:
        return state.fault("an attempt began on a packet that was not accepted")
    if state.running is not None:
        state = state.fault("an attempt began before the last one had ended")
    if event.body["attempt"] != len(state.starts) + 1:
        state = state.fault("an attempt is missing from the count")
    if state.freeze is not None:
        state = state.fault("an attempt was made after the estimates were frozen")
    return replace(state, starts=(*state.starts, event))


def _end(state: State, event: Event) -> State:
    if state.running is None or event.body["attempt"] != state.running.body["attempt"]:
        return state.fault("an attempt ended that had not begun")
    if event.body["status"] not in ("completed", "crashed"):
        state = state.fault("an attempt ended in an unknown way")
    return replace(state, ends=(*state.ends, event))


def _unblind(state: State, event: Event) -> State:
    return replace(state, unblinded=(*state.unblinded, event)) if state.freeze is None else state


def _question(state: State, event: Event) -> State:
    if state.issue is None or not event.saw(state.issue):
        return state.fault("a question was asked about no packet")
    if state.freeze is not None:
        return state.fault("a question was asked after the estimates were frozen")
    # The old nonce is known by now: an author who knows it could choose a packet by the order that it would give.
    return replace(state, questions=(*state.questions, event), commit=event)


def _freeze(state: State, event: Event) -> State:
    if state.freeze is not None:
        return state.fault("the frozen estimates were edited")
    if state.reveal is not None or state.lost is not None:
        state = state.fault("the estimates were frozen after the reveal")
    if state.accept is None or event.body["root"] != state.accept.body["root"]:
        return state.fault("estimates were frozen of a packet that was not accepted")
    if state.running is not None or not state.ends:
        state = state.fault("estimates were frozen without an ended attempt, or while one ran")
    if [a["attempt"] for a in event.body["attempts"]] != [e.body["attempt"] for e in state.ends]:
        state = state.fault("the frozen estimates leave out an attempt")
    return replace(state, freeze=event)


def _reveal(state: State, event: Event) -> State:
    if state.reveal is not None:
        return state.fault("the seal was opened twice")
    if state.freeze is None or not event.saw(state.freeze):
        state = state.fault("the seal was opened before the estimates were frozen")
    elif event.role == events.STEWARD and not _late(state, event):
        state = state.fault("the steward opened the seal before the deadline")
    if set(event.body["keys"]) != {issue.body["packet_id"] for issue in state.issues}:
        state = state.fault("not every packet that was issued was opened")
    return replace(state, reveal=event)


def _lost(state: State, event: Event) -> State:
    if state.freeze is None or not event.saw(state.freeze) or not _late(state, event):
        return state.fault("the keys were declared lost before the deadline")
    return replace(state, lost=event) if state.reveal is None else state


def _challenge(state: State, event: Event) -> State:
    if state.reveal is None or not event.saw(state.reveal):
        return state.fault("the claim was challenged before the seal was opened")
    if state.challenge is not None:
        return state.fault("the claim was challenged twice")
    return replace(state, challenge=event)


def _verdict(state: State, event: Event) -> State:
    opened = state.reveal or state.lost
    if opened is None or not event.saw(opened):
        return state.fault("a verdict was given before the seal was opened")
    if state.reveal is not None and (state.challenge is None or not event.saw(state.challenge)):
        return state.fault("a verdict was given before the claim was challenged")
    if any(other.role == event.role for other in state.verdicts):
        return state.fault(f"the {event.role} gave two verdicts")
    if any(other.body["sha256"] != event.body["sha256"] for other in state.verdicts):
        state = state.fault("reviewer and steward signed different verdicts")
    if event.role == events.STEWARD and not state.verdicts:
        return state.fault("the steward signed before the reviewer")
    return replace(state, verdicts=(*state.verdicts, event))


def _late(state: State, event: Event) -> bool:
    """Whether the deadline has passed that the packet set for its author, counted from the freeze."""
    if state.freeze is None or state.issue is None:
        return False
    allowed = datetime.timedelta(days=float(state.issue.body["deadline_days"]))
    return _moment(event) >= _moment(state.freeze) + allowed


def _moment(event: Event) -> datetime.datetime:
    return datetime.datetime.fromisoformat(event.time_utc)


def nonce_digest(nonce: bytes) -> str:
    """What a reviewer commits to."""
    return hashlib.sha256(b"counterproof/nonce\0" + nonce).hexdigest()


def attempt_nonce(nonce: bytes, attempt: int) -> bytes:
    """The nonce of one attempt: the reviewer's own for the first, one that follows from it for each later one."""
    if attempt == 1:
        return nonce
    return hashlib.sha256(b"counterproof/attempt\0" + nonce + attempt.to_bytes(4, "big")).digest()


_STEPS: Mapping[str, Callable[[State, Any], State]] = {
    WITNESS: _witness,
    events.PREREG: _prereg,
    events.COMMIT: _commit,
    events.ISSUE: _issue,
    events.ACCEPT: _accept,
    events.START: _start,
    events.END: _end,
    events.UNBLIND: _unblind,
    events.QUESTION: _question,
    events.FREEZE: _freeze,
    events.REVEAL: _reveal,
    events.LOST: _lost,
    events.CHALLENGE: _challenge,
    events.VERDICT: _verdict,
}
