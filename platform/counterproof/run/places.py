"""Which runs a study consists of, and which of them are still missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterproof.errors import RefusedError
from counterproof.plan.reserve import blocks_in_force
from counterproof.record.store import RunKey

SABOTAGE = "sabotage"
ENDINGS = frozenset({"run_sealed", "run_failed", "run_lost", "run_refused"})


@dataclass(frozen=True)
class Place:
    """One run of the plan; `block` None is the equivalence phase, or with `probe` a run of the probes."""

    block: int | None
    arm: str
    probe: bool = False

    @staticmethod
    def of(key: RunKey) -> Place:
        """Where a run belongs."""
        return Place(key.block, key.arm, key.probe)

    @property
    def phase(self) -> str:
        return RunKey(self.block, self.arm, 1, self.probe).phase

    def __str__(self) -> str:
        return f"{self.phase} {self.arm}" if self.block is None else f"block {self.block} {self.arm}"


def places(plan: Mapping[str, Any], events: Sequence[Mapping[str, Any]] = ()) -> list[Place]:
    """Every run in the order of the plan: the equivalence phase, the blocks in force as scheduled, the probes.

    events  the journal, which tells the reserve blocks that were called up
    """
    result = []
    if plan["workload"].get("equivalence_sha256") is not None:
        result = [Place(None, "baseline"), Place(None, "candidate")]
    for block, order in enumerate(plan["schedule"][: blocks_in_force(plan, events)]):
        result += [Place(block, arm) for arm in order]
    probes = plan.get("probes") or {"arms": []}
    return result + [Place(None, arm, probe=True) for arm in probes["arms"]]


def done(events: Sequence[Mapping[str, Any]]) -> set[Place]:
    """Places that have a sealed run."""
    keys = [RunKey.parse(event["run"]) for event in events if event["kind"] == "run_sealed"]
    return {Place.of(key) for key in keys}


def open_attempts(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Runs that the journal saw start and not end: their process was killed, or the harness was."""
    ended = {event["run"] for event in events if event["kind"] in ENDINGS}
    return [event["run"] for event in events if event["kind"] == "run_started" and event["run"] not in ended]


def next_key(place: Place, events: Sequence[Mapping[str, Any]]) -> RunKey:
    """The key of the next attempt at `place`."""
    keys = [RunKey.parse(event["run"]) for event in events if event["kind"] == "run_started"]
    attempts = [key.attempt for key in keys if Place.of(key) == place]
    return RunKey(place.block, place.arm, max(attempts, default=0) + 1, place.probe)


def failures(place: Place, events: Sequence[Mapping[str, Any]]) -> int:
    """Attempts at `place` that failed by themselves (a killed one is no failure)."""
    keys = [RunKey.parse(event["run"]) for event in events if event["kind"] == "run_failed"]
    return sum(Place.of(key) == place for key in keys)


def refuse_early_candidate(place: Place, sealed: set[Place]) -> None:
    """Raise RefusedError for a candidate, sabotaged or not, with no sealed baseline of its phase before it."""
    if place.arm not in ("candidate", SABOTAGE):
        return
    if place.block is None:
        before = Place(None, "baseline", place.probe) in sealed
    else:
        before = any(other.arm == "baseline" and other.block is not None for other in sealed)
    if not before:
        raise RefusedError(
            f"refused: {place} before a sealed baseline of this study exists",
            details=["a candidate measured first could choose the baseline that suits it"],
        )
