"""Probing a cell with warm engines: both arms on the same loads, in an order that a seed sets, block after block."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from counterproof.errors import ExecutionError
from counterproof.measure.metrics import run_value
from counterproof_review.challenge.bench import Bench
from counterproof_review.challenge.compare import difference, gain
from counterproof_review.challenge.engines import Engines, WarmRun
from counterproof_review.challenge.search import Outcome
from counterproof_review.challenge.space import Cell
from counterproof_review.challenge.workload import PLAIN, Builder, Load

GAP = 1.25  # of the time that the baseline needs for one burst
PAIR = ("baseline", "candidate")


@dataclass
class Counts:
    """What the search counts besides cells."""

    loads: int = 0
    requests: int = 0
    rounding: int = 0
    crashes: int = 0
    filled: int = 0


@dataclass
class _Cell:
    gains: list[float] = field(default_factory=list)
    wrong: int = 0
    notes: dict[str, None] = field(default_factory=dict)

    def outcome(self) -> Outcome:
        return Outcome(tuple(self.gains), self.wrong, (), "; ".join(self.notes))


class WarmProbe:
    """A `Probe` of the search. A cell that the baseline cannot run has no gains, and a note that says why."""

    def __init__(self, bench: Bench, engines: Engines, builder: Builder) -> None:
        self._bench, self._engines, self._builder = bench, engines, builder
        self.counts = Counts()

    def __call__(self, cell: Cell, blocks: int, seed: int) -> Outcome:
        """Measure `cell`; every block has a load of its own."""
        found = _Cell()
        try:
            gap = self.gap_ns(cell, seed)
        except ExecutionError as error:
            return Outcome((), 0, (), f"the baseline failed: {error}")
        for block in range(blocks):
            if not self._block(found, cell, seed, block, gap):
                break
        return found.outcome()

    def gap_ns(self, cell: Cell, seed: int) -> int | None:
        """The time between two bursts, from one burst on the baseline; None for a cell without bursts."""
        if {**PLAIN, **cell}["burstiness"] != "burst":
            return None
        load = self._builder.load(cell, seed, 0)
        once = Load(load.requests[: load.concurrency], load.warmup, load.concurrency)
        return int(GAP * 1e9 * self._run("baseline", once).seconds)

    def _block(self, found: _Cell, cell: Cell, seed: int, block: int, gap: int | None) -> bool:
        """One block; whether another makes sense."""
        load = self._builder.load(cell, seed, block, gap)
        order = np.random.default_rng([seed, block, 1]).permutation(PAIR)
        runs: dict[str, WarmRun] = {}
        for role in (str(name) for name in order):
            try:
                runs[role] = self._run(role, load)
            except ExecutionError as error:
                self.counts.crashes += 1
                found.notes[f"the {role} failed: {error}"] = None
        if "baseline" not in runs:
            return False
        if "candidate" not in runs:
            found.wrong += len(load.requests)
            return False
        self._compare(found, load, runs)
        return True

    def _compare(self, found: _Cell, load: Load, runs: dict[str, WarmRun]) -> None:
        claim = self._bench.claim
        values = {role: run_value(run, claim.metric, claim.statistic) for role, run in runs.items()}
        ratio = gain(values["candidate"].value, values["baseline"].value, claim.sign)
        if ratio is None:
            reasons = {f"{role}: {v.reason}" for role, v in values.items() if v.value is None}
            found.notes.update(dict.fromkeys(sorted(reasons)))
        else:
            found.gains.append(ratio)
        seen = difference(runs["baseline"].rows["requests"], runs["candidate"].rows["requests"])
        found.wrong += seen.failed
        if seen.failed:
            found.notes["requests failed in the candidate alone"] = None
        if seen.changed and claim.lossless:
            found.wrong += self._exactly(found, load, seen.changed)

    def _exactly(self, found: _Cell, load: Load, changed: int) -> int:
        """How many of the changed outputs are wrong: those that differ where rounding cannot explain it."""
        modes = {role: self._engines.exact(role) for role in PAIR}
        if set(modes.values()) == {None}:
            return changed
        try:
            runs = {role: self._run(role, load, mode) for role, mode in modes.items()}
        except ExecutionError as error:
            found.notes[f"outputs differ, and could not be compared in invariant mode: {error}"] = None
            return 0
        wrong = difference(runs["baseline"].rows["requests"], runs["candidate"].rows["requests"]).changed
        self.counts.rounding += max(0, changed - wrong)
        return wrong

    def _run(self, role: str, load: Load, mode: str | None = None) -> WarmRun:
        self.counts.loads += 1
        self.counts.requests += len(load.requests)
        return self._engines.run(role, load, mode)
