"""Counterexample search: corners, a scrambled Sobol sequence, refinement of the worst, and fresh confirmation.

A probe measures a cell with few blocks and only nominates. What it nominates is chosen for looking bad, so that by
chance alone most searches would "find" something: with 200 cells of 3 blocks, 6 % noise and a true gain of 8 %
everywhere, 94 % do. A flip therefore counts only when fresh runs, which nothing was chosen by, confirm it: the upper
one-sided 95 % bound of the gain lies below 0, by Holm over all cells that were confirmed. Wrong outputs need no
statistics, but a fresh run that shows them again. Where the fresh runs hold a second baseline, a loss has to exceed
what the two baselines differ by, too. Cells in the box of the claim are confirmed first. "None found in N cells" never means that none exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from counterproof.measure.holm import holm
from counterproof.measure.noise import floor_log
from counterproof_review.challenge import cells
from counterproof_review.challenge.space import Cell, Space, Value

ALPHA = 0.05
PHASES = ("corner", "boundary", "sobol", "refine")


@dataclass(frozen=True)
class Outcome:
    """What a probe saw of a cell.

    gains   per block, in log units, positive = better; none where there is no value to compare
    wrong   requests that only the candidate fails or answers with other tokens
    again   the same baseline once more over the baseline, per block; none where it did not run
    note    what else there is to say, e.g. why there are no gains
    """

    gains: tuple[float, ...]
    wrong: int = 0
    again: tuple[float, ...] = ()
    note: str = ""

    @property
    def mean(self) -> float:
        """Mean gain; +inf without any."""
        return math.fsum(self.gains) / len(self.gains) if self.gains else math.inf


Probe = Callable[[Cell, int, int], Outcome]
"""Measures a cell: (cell, blocks, seed of the runs) -> Outcome. The same seed is never asked for twice."""


@dataclass(frozen=True)
class Budget:
    """How much to spend. cells: probes; probe_blocks, confirm_blocks: blocks of each; confirm: most confirmations."""

    cells: int = 160
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
    box: Space | None = None
    tried: list[Tried] = field(default_factory=list)
    confirmed: list[Confirmed] = field(default_factory=list)
    planned_corners: int = 0
    planned_cells: int = 0
    nominated: int = 0
    nominated_inside: int = 0
    blocks_run: int = 0

    @property
    def flips(self) -> list[Confirmed]:
        """Cells that overturn the claim."""
        return [one for one in self.confirmed if one.flip]

    def holds(self, cell: Cell) -> bool:
        """Whether a cell lies in what the claim is about."""
        return self.box is None or self.box.holds(cell)

    def report(self) -> dict[str, Any]:
        """Cells tried, confirmed and not tried, as plain data."""
        corners = sum(t.phase == "corner" for t in self.tried)
        return {
            "seed": self.seed,
            "cells_tried": len(self.tried),
            "by_phase": {phase: sum(t.phase == phase for t in self.tried) for phase in PHASES},
            "cells_inside": sum(self.holds(t.cell) for t in self.tried),
            "cells_planned": self.planned_cells,
            "corners_not_tried": self.planned_corners - corners,
            "cells_without_value": sum(not t.outcome.gains for t in self.tried),
            "nominated": self.nominated,
            "nominated_inside": self.nominated_inside,
            "nominated_not_confirmed": self.nominated - len(self.confirmed),
            "nominated_inside_not_confirmed": self.nominated_inside
            - sum(self.holds(one.cell) for one in self.confirmed),
            "blocks_run": self.blocks_run,
            "worst": [
                {
                    "cell": t.cell,
                    "gain": _ratio(t.outcome),
                    "wrong": t.outcome.wrong,
                    "note": t.outcome.note,
                }
                for t in sorted(self.tried, key=_badness)[:5]
            ],
            "confirmed": [described(c) for c in self.confirmed],
            "flips": len(self.flips),
            "says": (
                f"{len(self.flips)} confirmed in {len(self.tried)} cells"
                if self.flips
                else f"none found in {len(self.tried)} cells, which is not proof that there is none"
            ),
        }


def described(one: Confirmed) -> dict[str, Any]:
    """A cell that was measured afresh, as plain data."""
    return {
        "cell": one.cell,
        "gain": _ratio(one.outcome),
        "wrong": one.outcome.wrong,
        "blocks": len(one.outcome.gains),
        "p": one.p,
        "flip": one.flip,
        "why": one.why,
    }


def search(
    space: Space,
    probe: Probe,
    budget: Budget,
    seed: int,
    tell: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
    *,
    box: Space | None = None,
    confirm: Probe | None = None,
    more: Callable[[str], bool] = lambda _phase: True,
) -> Search:
    """Search `space` within `budget`. `seed` comes from the reviewer; `tell(done, total, what)` reports progress.

    box      the part of the space that the claim is about, whose cells are confirmed first; None: all of it
    confirm  measures what was nominated, in runs that share nothing with the probes; `probe` itself where None
    more     asked before each measurement of a phase: whether there is time for another
    """
    found = Search(space, budget, seed, box)
    rng = np.random.default_rng([seed, 0])
    first = cells.first(space, box, budget.cells - int(budget.cells * budget.refine_share), rng)
    found.planned_corners = math.prod(len(d.ends()) for d in space.dimensions)
    found.planned_cells = len(first)
    for cell, phase in first:
        if not more(phase):
            break
        _try(found, probe, cell, phase, tell)
    while found.tried and len(found.tried) < budget.cells and more("refine"):
        near = _refined(found, rng)
        if near is None:
            break
        _try(found, probe, near, "refine", tell)
    _confirm(found, confirm or probe, tell, more)
    return found


def _try(found: Search, probe: Probe, cell: Cell, phase: str, tell: Callable[[int, int, str], None]) -> None:
    number, blocks = len(found.tried), found.budget.probe_blocks
    outcome = probe(cell, blocks, run_seed(found.seed, 1, number))
    found.tried.append(Tried(cell, phase, outcome))
    found.blocks_run += blocks
    tell(len(found.tried), found.budget.cells, phase)


def _badness(tried: Tried) -> tuple[int, float]:
    return -tried.outcome.wrong, tried.outcome.mean


def _is_bad(tried: Tried) -> bool:
    return tried.outcome.wrong > 0 or tried.outcome.mean < 0.0


def _refined(found: Search, rng: np.random.Generator) -> Cell | None:
    """In turn the point of the box nearest to one of the bad cells outside, and a neighbour of one of the worst."""
    ranked = sorted(found.tried, key=_badness)
    known = {cells.key(t.cell) for t in found.tried}
    if found.box is not None and sum(t.phase == "refine" for t in found.tried) % 2 == 0:
        inner = cells.pulled_in(found.box, (t.cell for t in ranked if _is_bad(t)), known)
        if inner is not None:
            return inner
    worst = [t.cell for t in ranked[: max(1, len(ranked) // 8)]]
    return cells.neighbour(found.space, found.box, worst, known, rng)


def _confirm(
    found: Search, probe: Probe, tell: Callable[[int, int, str], None], more: Callable[[str], bool]
) -> None:
    """Measure the worst cells afresh and decide over all of them together.

    Those inside the box of the claim come first, since only they can cut it; those outside get what is left.
    """
    budget = found.budget
    ranked = sorted(filter(_is_bad, found.tried), key=_badness)
    nominated = sorted(ranked, key=lambda t: not found.holds(t.cell))
    found.nominated = len(nominated)
    found.nominated_inside = sum(found.holds(t.cell) for t in nominated)
    fresh: list[tuple[Cell, Outcome]] = []
    for number, tried in enumerate(nominated[: budget.confirm]):
        if not more("confirm"):
            break
        outcome = probe(tried.cell, budget.confirm_blocks, run_seed(found.seed, 2, number))
        found.blocks_run += budget.confirm_blocks
        fresh.append((tried.cell, outcome))
        tell(number + 1, min(len(nominated), budget.confirm), "confirm")
    adjusted = holm({str(i): loss_p_value(outcome.gains) for i, (_, outcome) in enumerate(fresh)})
    for number, (cell, outcome) in enumerate(fresh):
        p = adjusted[str(number)]
        found.confirmed.append(decide(cell, outcome, p))


def decide(cell: Cell, outcome: Outcome, p: float | None) -> Confirmed:
    """Whether fresh runs overturn the claim in a cell. `p`: adjusted for all cells that were measured afresh."""
    if outcome.wrong:
        return Confirmed(cell, outcome, p, True, f"{outcome.wrong} wrong outputs, again in a fresh run")
    floor = floor_log(outcome.again) if outcome.again else None
    if p is not None and p < ALPHA and floor is not None and outcome.mean >= -floor:
        loss, same = -100 * math.expm1(outcome.mean), 100 * math.expm1(floor)
        why = f"a loss of {loss:.1f} %, no more than two equal arms may differ by here ({same:.1f} %)"
        return Confirmed(cell, outcome, p, False, why)
    if p is not None and p < ALPHA:
        return Confirmed(
            cell, outcome, p, True, f"a loss of {-100 * math.expm1(outcome.mean):.1f} % in fresh runs"
        )
    if not outcome.gains:
        return Confirmed(cell, outcome, p, False, f"not measured: {outcome.note or 'no run gave a value'}")
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


def _ratio(outcome: Outcome) -> float | None:
    return math.expm1(outcome.mean) if math.isfinite(outcome.mean) else None


def run_seed(seed: int, stage: int, number: int) -> int:
    """The seed of one cell's runs: never the same for two of them, so that confirmation is fresh."""
    return int(np.random.SeedSequence([seed, stage, number]).generate_state(1, np.uint64)[0] >> 1)


def cell_words(cell: Mapping[str, Value]) -> str:
    """A cell as people read it."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in cell.items()
    )
