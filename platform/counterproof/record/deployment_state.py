"""What the ledger of deployments says at a moment: pure functions from its entries to who serves which scope.

A scope begins with the baseline of the first study that was promoted in it. Each promotion is put on top; a rollback
takes the topmost off; an override takes itself off when its time is over, whether or not anybody wrote that down.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from counterproof.errors import EvidenceError
from counterproof.record.deployment_ledger import DRILLED, EXPIRED, FILE_NAME, PROMOTED, ROLLED_BACK

BASELINE, CANDIDATE = "baseline", "candidate"
NEVER_PROMOTED = -1


@dataclass(frozen=True)
class Served:
    """One configuration in one scope.

    seq                   the ledger entry that put it there, NEVER_PROMOTED (-1) for a scope's baseline
    config                the engine's paths with their values; `config_sha256` over its canonical JSON
    evidence_expires_utc  when the decision behind it expires; it serves on, but must be replicated anew
    ends_utc              when it stops serving by itself (an override), None: never
    """

    scope: str
    seq: int
    study: str
    arm: str
    config: dict[str, Any]
    config_sha256: str
    box: dict[str, Any]
    since_utc: str
    evidence_expires_utc: str | None = None
    ends_utc: str | None = None

    def over(self, now: datetime.datetime) -> bool:
        """Whether its time is over."""
        return self.ends_utc is not None and moment(self.ends_utc) <= now


@dataclass(frozen=True)
class ScopeState:
    """Everything promoted in a scope and not taken back; `stack` may hold overrides whose time is over."""

    name: str
    baseline: Served
    stack: tuple[Served, ...] = ()

    def champion(self, now: datetime.datetime) -> Served:
        """What serves."""
        live = self._live(now)
        return live[-1] if live else self.baseline

    def previous(self, now: datetime.datetime) -> Served | None:
        """What a rollback goes back to; None when the baseline serves."""
        live = self._live(now)
        if not live:
            return None
        return live[-2] if len(live) > 1 else self.baseline

    def overdue(self, now: datetime.datetime) -> tuple[Served, ...]:
        """Overrides whose end nobody has written down yet."""
        return tuple(one for one in self.stack if one.over(now))

    def next_end(self, now: datetime.datetime) -> datetime.datetime | None:
        """When the next override ends by itself."""
        ends = [moment(one.ends_utc) for one in self._live(now) if one.ends_utc is not None]
        return min(ends, default=None)

    def _live(self, now: datetime.datetime) -> list[Served]:
        return [one for one in self.stack if not one.over(now)]


def fold(events: Iterable[Mapping[str, Any]]) -> dict[str, ScopeState]:
    """The state of every scope after all entries. Raises EvidenceError for an entry that contradicts those before."""
    scopes: dict[str, ScopeState] = {}
    for event in events:
        try:
            if event["kind"] == PROMOTED:
                scopes[event["scope"]] = _promote(scopes.get(event["scope"]), event)
            elif event["kind"] in (ROLLED_BACK, EXPIRED):
                scopes[event["scope"]] = _take_off(scopes.get(event["scope"]), event)
        except KeyError as error:
            raise _contradiction(event, f"it lacks the field {error}") from None
    return scopes


def drills(events: Iterable[Mapping[str, Any]], study: str) -> list[dict[str, Any]]:
    """The drills of a study, oldest first."""
    return [dict(event) for event in events if event["kind"] == DRILLED and event["study"] == study]


def moment(text: str) -> datetime.datetime:
    """An ISO time with its zone. Raises EvidenceError."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise EvidenceError(f"{text!r} is not an ISO 8601 time") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


def _promote(state: ScopeState | None, event: Mapping[str, Any]) -> ScopeState:
    served = Served(
        scope=event["scope"],
        seq=event["seq"],
        study=event["study"],
        arm=CANDIDATE,
        config=event["config"],
        config_sha256=event["config_sha256"],
        box=event["box"],
        since_utc=event["time_utc"],
        evidence_expires_utc=event["evidence_expires_utc"],
        ends_utc=event["ends_utc"],
    )
    if state is None:
        baseline = replace(
            served,
            seq=NEVER_PROMOTED,
            arm=BASELINE,
            config=event["baseline_config"],
            config_sha256=event["baseline_sha256"],
            evidence_expires_utc=None,
            ends_utc=None,
        )
        state = ScopeState(event["scope"], baseline)
    if state.champion(moment(event["checked_utc"])).config_sha256 != event["baseline_sha256"]:
        raise _contradiction(event, "its baseline is not what served then")
    return replace(state, stack=(*state.stack, served))


def _take_off(state: ScopeState | None, event: Mapping[str, Any]) -> ScopeState:
    """A rollback names the champion; an end names the override, wherever it stands."""
    seqs = [] if state is None else [one.seq for one in state.stack]
    if state is None or event["from_seq"] not in seqs:
        raise _contradiction(event, f"entry {event['from_seq']} does not serve")
    if event["kind"] == ROLLED_BACK and state.champion(moment(event["checked_utc"])).seq != event["from_seq"]:
        raise _contradiction(event, f"entry {event['from_seq']} was not on top")
    return replace(state, stack=tuple(one for one in state.stack if one.seq != event["from_seq"]))


def _contradiction(event: Mapping[str, Any], why: str) -> EvidenceError:
    return EvidenceError(f"{FILE_NAME} line {event['seq'] + 1} ({event['kind']}) contradicts the rest: {why}")
