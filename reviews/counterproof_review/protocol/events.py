"""What happened in a review, in an order that respects what each party had seen.

There are three ledgers, one a role. Within a ledger order is the chain's; between ledgers an entry comes after
everything that its ledger had witnessed before it. Clock times decide nothing but a deadline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.ledger import WITNESS, Entry

AUTHOR, REVIEWER, STEWARD = "author", "reviewer", "steward"
PARTIES = (AUTHOR, REVIEWER, STEWARD)

PREREG, COMMIT, ISSUE, ACCEPT = "prereg", "commit", "issue", "accept"
START, END, UNBLIND, QUESTION = "start", "end", "unblind", "question"
FREEZE, REVEAL, LOST, CHALLENGE, VERDICT = "freeze", "reveal", "lost", "challenge", "verdict"
# Who may enter what.
MAKERS: Mapping[str, tuple[str, ...]] = {
    PREREG: (AUTHOR,),
    COMMIT: (REVIEWER,),
    ISSUE: (AUTHOR,),
    ACCEPT: (REVIEWER,),
    START: (REVIEWER,),
    END: (REVIEWER,),
    UNBLIND: (REVIEWER,),
    QUESTION: (REVIEWER,),
    FREEZE: (REVIEWER,),
    REVEAL: (AUTHOR, STEWARD),
    LOST: (STEWARD,),
    CHALLENGE: (REVIEWER,),
    VERDICT: (REVIEWER, STEWARD),
    WITNESS: PARTIES,
}


@dataclass(frozen=True)
class Event:
    """One entry. `seen`: how many entries of each other party's ledger its maker had witnessed before it."""

    role: str
    seq: int
    kind: str
    body: Mapping[str, Any]
    signer: str = ""
    sha256: str = ""
    time_utc: str = ""
    seen: Mapping[str, int] = field(default_factory=dict)

    def saw(self, other: Event) -> bool:
        """Whether the maker of this event knew `other`."""
        return other.seq < (self.seq if other.role == self.role else self.seen.get(other.role, 0))


def in_order(ledgers: Mapping[str, Sequence[Entry]]) -> list[Event]:
    """All events of verified ledgers (by role), causes before effects.

    Raises TrustError E_CHAIN when two ledgers claim to have seen each other's future, E_ROLE for a foreign entry.
    """
    queues = {role: _events(role, ledgers.get(role, ())) for role in PARTIES}
    done = dict.fromkeys(PARTIES, 0)
    found: list[Event] = []
    total = sum(map(len, queues.values()))
    while len(found) < total:
        ready = [
            queues[role][done[role]]
            for role in PARTIES
            if done[role] < len(queues[role]) and _ready(queues[role][done[role]], done)
        ]
        if not ready:
            raise TrustError("E_CHAIN", "a ledger witnessed entries that are not there")
        found.append(ready[0])
        done[ready[0].role] += 1
    return found


def _ready(event: Event, done: Mapping[str, int]) -> bool:
    return all(done[role] >= count for role, count in event.seen.items())


def _events(role: str, entries: Sequence[Entry]) -> list[Event]:
    seen = {other: 0 for other in PARTIES if other != role}
    found = []
    for entry in entries:
        if entry.role != role:
            raise TrustError("E_ROLE", f"the ledger of the {role} holds an entry of a {entry.role}")
        if entry.kind == WITNESS and entry.body.get("ledger") in seen:
            other = str(entry.body["ledger"])
            seen[other] = max(seen[other], int(entry.body["seq"]) + 1)
        found.append(
            Event(
                role,
                entry.seq,
                entry.kind,
                entry.body,
                entry.signer,
                entry.sha256,
                entry.time_utc,
                dict(seen),
            )
        )
    return found
