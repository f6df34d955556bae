"""From a confirmed counterexample to the smallest one: dimension by dimension towards the plainest value.

Each step is measured afresh and kept only if it still fails, so that what remains is what the failure needs. Numbers
go by bisection. Delta debugging on values instead of lists: Zeller, Hildebrandt, IEEE Trans. Softw. Eng. 28(2), 2002.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from counterproof_review.challenge.search import ALPHA, Outcome, Probe, loss_p_value
from counterproof_review.challenge.space import Cell, Dimension, Space, Value

BISECTIONS = 6
KEEPS = 0.5  # of the loss, in log units, that a smaller cell has to show


@dataclass(frozen=True)
class Shrunk:
    """The smallest failing cell found, how many cells were measured for it, and which dimensions it needs."""

    cell: Cell
    outcome: Outcome
    measured: int
    needed: tuple[str, ...]


def shrink(
    space: Space,
    cell: Cell,
    outcome: Outcome,
    probe: Probe,
    seed: Callable[[int], int],
    *,
    blocks: int = 8,
    most: int = 40,
    more: Callable[[str], bool] = lambda _phase: True,
) -> Shrunk:
    """Shrink `cell`, which fails with `outcome`. `seed(n)` seeds the n-th measurement; at most `most` of them, and
    only while `more("shrink")` says that there is time.

    A measurement fails if it shows a wrong output where the first did, or else a loss at 5 % of at least half the
    first one's size: a smaller loss may be another one, to which shrinking would slip.
    """
    state = _State(space, dict(cell), outcome, probe, seed, blocks, most, more, KEEPS * outcome.mean)
    for dimension in space.dimensions:
        if not state.accepts(dimension, dimension.plainest) and dimension.kind != "choice":
            _bisect(state, dimension)
    for dimension in space.dimensions:  # noise may have kept one, and others are plainer now
        state.accepts(dimension, dimension.plainest)
    needed = tuple(d.name for d in space.dimensions if state.cell[d.name] != d.plainest)
    return Shrunk(state.cell, state.outcome, state.measured, needed)


@dataclass
class _State:
    space: Space
    cell: Cell
    outcome: Outcome
    probe: Probe
    seed: Callable[[int], int]
    blocks: int
    most: int
    more: Callable[[str], bool]
    least: float
    measured: int = 0

    def accepts(self, dimension: Dimension, value: Value) -> bool:
        """Whether the cell still fails with this value; if so, it is the cell from now on."""
        if self.cell[dimension.name] == value:
            return True
        if self.measured >= self.most or not self.more("shrink"):
            return False
        tried = {**self.cell, dimension.name: value}
        found = self.probe(tried, self.blocks, self.seed(self.measured))
        self.measured += 1
        if not self._fails(found):
            return False
        self.cell, self.outcome = tried, found
        return True

    def _fails(self, found: Outcome) -> bool:
        if self.outcome.wrong:
            return found.wrong > 0
        p = loss_p_value(found.gains)
        return p is not None and p < ALPHA and found.mean <= self.least


def _bisect(state: _State, dimension: Dimension) -> None:
    """Between the plainest value, which passes, and the present one, which fails."""
    passing, failing = dimension.share(dimension.plainest), dimension.share(state.cell[dimension.name])
    for _ in range(BISECTIONS):
        middle = (passing + failing) / 2
        value = dimension.at(middle)
        if value in (dimension.at(passing), dimension.at(failing)):
            return
        if state.accepts(dimension, value):
            failing = middle
        else:
            passing = middle
