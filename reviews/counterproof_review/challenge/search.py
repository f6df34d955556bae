"""Counterexample search: corners, a scrambled Sobol sequence, refinement of the worst, and fresh confirmation.

A probe measures a cell with few blocks and only nominates. What it nominates is chosen for looking bad, so that by
chance alone most searches would "find" something: with 200 cells of 3 blocks, 6 % noise and a true gain of 8 %
everywhere, 94 % do. A flip therefore counts only when fresh runs, which nothing was chosen by, confirm it: the upper
one-sided 95 % bound of the gain lies below 0, by Holm over all cells that were confirmed. Wrong outputs need no
statistics, but a fresh run that shows them again. "None found in N cells" never means that none exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from counterproof.measure.holm import holm
from counterproof_review.challenge.space import Cell, Space, Value

ALPHA = 0.05
PHASES = ("corner", "boundary", "sobol", "refine")


@dataclass(frozen=True)
class Outcome:
    """What a probe saw of a cell: per-block gains (log units, positive = better), and requests with wrong outputs."""

    gains: tuple[float, ...]
    wrong: int = 0

    @property
    def mean(self) -> float:
        """Mean gain; +inf without any."""
        return math.fsum(self.gains) / len(self.gains) if self.gains else math.inf


Probe = Callable[[Cell, int, int], Outcome]
"""Measures a cell: (cell, blocks, seed of the runs) -> Outcome. The same seed is never asked for twice."""


@dataclass(frozen=True)
class Budget:
    """How much to spend. cells: probes; probe_blocks, confirm_blocks: blocks of each; confirm: most confirmations."""

    cells: int = 48
    probe_blocks: int = 3
    confirm_blocks: int = 8
    confirm: int = 6
    refine_share: float = 0.3


@dataclass(frozen=True)
class Tried:
    """One probed cell."""

    cell: Cell
    phase: str
    outcome: Outcome


@dataclass(frozen=True)
class Confirmed:
    """One cell that was measured afresh. `p`: one-sided p-value of gain >= 0, adjusted by Holm."""

    cell: Cell
    outcome: Outcome
    p: float | None
    flip: bool
    why: str


@dataclass
class Search:
    """The record of a search."""

    space: Space
    budget: Budget
    seed: int
    tried: list[Tried] = field(default_factory=list)
    confirmed: list[Confirmed] = field(default_factory=list)
    planned_corners: int = 0
    blocks_run: int = 0

    @property
    def flips(self) -> list[Confirmed]:
        """Cells that overturn the claim."""
        return [one for one in self.confirmed if one.flip]

    def report(self) -> dict[str, Any]:
        """Cells tried, confirmed and not tried, as plain data."""
        corners = sum(t.phase == "corner" for t in self.tried)
        return {
            "seed": self.seed,
            "cells_tried": len(self.tried),
            "by_phase": {phase: sum(t.phase == phase for t in self.tried) for phase in PHASES},
            "corners_not_tried": self.planned_corners - corners,
            "blocks_run": self.blocks_run,
            "worst": [
                {"cell": t.cell, "gain": math.expm1(t.outcome.mean), "wrong": t.outcome.wrong}
                for t in sorted(self.tried, key=_badness)[:5]
            ],
            "confirmed": [
                {"cell": c.cell, "gain": math.expm1(c.outcome.mean), "p": c.p, "flip": c.flip, "why": c.why}
                for c in self.confirmed
            ],
            "flips": len(self.flips),
            "says": (
                f"{len(self.flips)} confirmed in {len(self.tried)} cells"
                if self.flips
                else f"none found in {len(self.tried)} cells, which is not proof that there is none"
            ),
        }


def search(
    space: Space,
    probe: Probe,
    budget: Budget,
    seed: int,
    tell: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> Search:
    """Search `space` within `budget`. `seed` comes from the reviewer; `tell(done, total, what)` reports progress."""
    found = Search(space, budget, seed)
    rng = np.random.default_rng([seed, 0])
    first = _first_cells(space, budget, rng, found)
    for cell, phase in first:
        _try(found, probe, cell, phase, tell)
    while len(found.tried) < budget.cells:
        near = _refined(space, found.tried, rng)
        if near is None:
            break
        _try(found, probe, near, "refine", tell)
    _confirm(found, probe, tell)
    return found


def _first_cells(
    space: Space, budget: Budget, rng: np.random.Generator, found: Search
) -> list[tuple[Cell, str]]:
    """Corners and boundary cells in random order, at most half of what is not kept for refinement, then Sobol."""
    corners = list(space.corners())
    found.planned_corners = len(corners)
    refine = int(budget.cells * budget.refine_share)
    room = budget.cells - refine
    corner_cells = [(corners[i], "corner") for i in rng.permutation(len(corners))]
    boundary = [(cell, "boundary") for cell in space.boundary_cells()]
    boundary = [boundary[i] for i in rng.permutation(len(boundary))]
    some = boundary[: room // 3]
    chosen = [*corner_cells[: max(0, room // 2 - len(some))], *some]
    chosen += [(cell, "sobol") for cell in space.sobol(room - len(chosen), int(rng.integers(1 << 31)))]
    return _distinct(chosen)


def _distinct(cells: Sequence[tuple[Cell, str]]) -> list[tuple[Cell, str]]:
    seen: dict[tuple[tuple[str, Value], ...], tuple[Cell, str]] = {}
    for cell, phase in cells:
        seen.setdefault(tuple(cell.items()), (cell, phase))
    return list(seen.values())


def _try(found: Search, probe: Probe, cell: Cell, phase: str, tell: Callable[[int, int, str], None]) -> None:
    number, blocks = len(found.tried), found.budget.probe_blocks
    outcome = probe(cell, blocks, _run_seed(found.seed, 1, number))
    found.tried.append(Tried(cell, phase, outcome))
    found.blocks_run += blocks
    tell(len(found.tried), found.budget.cells, phase)


def _badness(tried: Tried) -> tuple[int, float]:
    return -tried.outcome.wrong, tried.outcome.mean


def _refined(space: Space, tried: Sequence[Tried], rng: np.random.Generator) -> Cell | None:
    """A neighbour of one of the worst cells, nearer the longer the search goes on; None when all are known."""
    known = {tuple(t.cell.items()) for t in tried}
    worst = sorted(tried, key=_badness)[: max(1, len(tried) // 8)]
    for attempt in range(64):
        start = worst[int(rng.integers(len(worst)))].cell
        width = 0.25 * 0.97**attempt
        steps = rng.normal(0.0, width, len(space.dimensions)) * (rng.random(len(space.dimensions)) < 0.5)
        cell = space.near(start, steps.tolist())
        if tuple(cell.items()) not in known:
            return cell
    return None


def _confirm(found: Search, probe: Probe, tell: Callable[[int, int, str], None]) -> None:
    """Measure the worst cells afresh and decide over all of them together."""
    budget = found.budget
    nominated = [t for t in sorted(found.tried, key=_badness) if t.outcome.wrong or t.outcome.mean < 0.0]
    fresh: list[tuple[Cell, Outcome]] = []
    for number, tried in enumerate(nominated[: budget.confirm]):
        outcome = probe(tried.cell, budget.confirm_blocks, _run_seed(found.seed, 2, number))
        found.blocks_run += budget.confirm_blocks
        fresh.append((tried.cell, outcome))
        tell(number + 1, min(len(nominated), budget.confirm), "confirm")
    adjusted = holm({str(i): loss_p_value(outcome.gains) for i, (_, outcome) in enumerate(fresh)})
    for number, (cell, outcome) in enumerate(fresh):
        p = adjusted[str(number)]
        found.confirmed.append(_decide(cell, outcome, p))


def _decide(cell: Cell, outcome: Outcome, p: float | None) -> Confirmed:
    if outcome.wrong:
        return Confirmed(cell, outcome, p, True, f"{outcome.wrong} wrong outputs, again in a fresh run")
    if p is not None and p < ALPHA:
        return Confirmed(
            cell, outcome, p, True, f"a loss of {-100 * math.expm1(outcome.mean):.1f} % in fresh runs"
        )
    return Confirmed(cell, outcome, p, False, "fresh runs do not confirm it")


def loss_p_value(gains: Sequence[float]) -> float | None:
    """One-sided t test of mean gain >= 0; small: a loss. None below two blocks."""
    n = len(gains)
    if n < 2 or not all(map(math.isfinite, gains)):
        return None
    mean, sd = float(np.mean(gains)), float(np.std(gains, ddof=1))
    if sd == 0.0:
        return 0.0 if mean < 0 else 1.0
    return float(stats.t.cdf(mean / (sd / math.sqrt(n)), n - 1))


def _run_seed(seed: int, stage: int, number: int) -> int:
    """The seed of one cell's runs: never the same for two of them, so that confirmation is fresh."""
    return int(np.random.SeedSequence([seed, stage, number]).generate_state(1, np.uint64)[0] >> 1)


def cell_words(cell: Mapping[str, Value]) -> str:
    """A cell as people read it."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in cell.items()
    )
