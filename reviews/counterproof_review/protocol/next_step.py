"""What is due next in a review, and by whom: pure, from the state alone, so that every party is told the same."""

from __future__ import annotations

from dataclasses import dataclass

from counterproof_review.protocol.events import AUTHOR, REVIEWER, STEWARD
from counterproof_review.protocol.machine import State


@dataclass(frozen=True)
class Next:
    """One thing that is due: who does it, the command (without --review), and what it is for."""

    role: str
    command: str
    why: str

    def __str__(self) -> str:
        return f"next, {self.role}: {self.command}   ({self.why})"


def due(state: State) -> list[Next]:
    """Everything that can be done now; empty when the review is over. Steps that only may be taken are left out."""
    if state.issue is None or _unanswered(state):
        return _before_packet(state)
    if state.accept is None:
        return [Next(REVIEWER, "counterproof review accept --independent", "take the packet, show the nonce")]
    if state.running is not None or not state.ends:
        return [Next(REVIEWER, "counterproof review replay", "measure; every attempt counts")]
    if state.freeze is None:
        freeze = "counterproof review freeze --guess ARM --confidence 0.25"
        return [Next(REVIEWER, freeze, "fix the estimates; or replay once more")]
    if state.reveal is None and state.lost is None:
        days = f"the steward may after {state.issue.body['deadline_days']:g} days"
        return [Next(AUTHOR, "counterproof review reveal", f"open the seal; {days}")]
    if state.reveal is not None and state.challenge is None:
        return [Next(REVIEWER, "counterproof review challenge", "look for inputs that overturn the claim")]
    return _signatures(state)


def _unanswered(state: State) -> bool:
    """Whether a question was asked about the packet that stands."""
    issue = state.issue
    return issue is not None and bool(state.questions) and not issue.saw(state.questions[-1])


def _before_packet(state: State) -> list[Next]:
    found = []
    if state.prereg is None:
        found.append(
            Next(AUTHOR, "counterproof review prereg EXPERIMENT --study NAME", "register before any run")
        )
    if state.commit is None:
        found.append(Next(REVIEWER, "counterproof review commit", "commit to the schedule's nonce"))
    if found:
        return found
    if state.witnessed is None:
        return [Next(STEWARD, "counterproof review witness", "see the plan before its first run")]
    if state.issue is None:
        run = Next(AUTHOR, "counterproof resume STUDY", "run the study, if it is not complete yet")
        return [run, Next(AUTHOR, "counterproof review issue STUDY", "seal and issue its packet")]
    return [Next(AUTHOR, "counterproof review issue STUDY", "answer the question by a new packet")]


def _signatures(state: State) -> list[Next]:
    signed = {event.role for event in state.verdicts}
    for role in (REVIEWER, STEWARD):
        if role not in signed:
            return [Next(role, "counterproof review verdict", "compute the verdict and sign it")]
    return []
