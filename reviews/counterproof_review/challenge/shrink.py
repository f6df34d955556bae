"""From a confirmed counterexample to the smallest one: dimension by dimension towards the plainest value.

Each step is measured afresh and kept only if it still fails, so that what remains is what the failure needs. Choices
go first, while the numbers are still large: bursts of four that pile up to six need bursts, a crowd of eight does not.
Numbers go by bisection. A choice that was kept is then tried against a larger number: six at once instead of bursts of
four. Delta debugging on values instead of lists: Zeller, Hildebrandt, IEEE Trans. Softw. Eng. 28(2), 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from counterproof_review.challenge.search import ALPHA, Outcome, Probe, loss_p_value
from counterproof_review.challenge.space import Cell, Dimension, Space, Value

BISECTIONS = 6
KEEPS = 0.5  # of the loss, in log units, that a smaller cell has to show


@dataclass(frozen=True)
class Shrunk:
    """The smallest failing cell found, how many cells were measured for it, and which dimensions it needs.

    needed    those that are not plain, and pass when they are: that was measured
    untested  those that are not plain, and were not tried, for want of time or measurements
    """

    cell: Cell
    outcome: Outcome
    measured: int
    needed: tuple[str, ...]
    untested: tuple[str, ...] = ()


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
    box: Space | None = None,
) -> Shrunk:
    """Shrink `cell`, which fails with `outcome`. `seed(n)` seeds the n-th measurement; at most `most` of them, and
    only while `more("shrink")` says that there is time. A cell inside `box` (None: all of the space) stays inside.

    A measurement fails if it shows a wrong output where the first did, or else a loss at 5 % of at least half the
    first one's size: a smaller loss may be another one, to which shrinking would slip.
    """
    state = _State(space, dict(cell), outcome, probe, seed, blocks, most, more, KEEPS * outcome.mean)
    numbers = [d for d in space.dimensions if d.kind != "choice"]
    choices = [d for d in space.dimensions if d.kind == "choice"]
    for dimension in choices:
        state.accepts({dimension.name: dimension.plainest})
    for dimension in numbers:
        _lower(state, dimension)
    limits = {d.name: d for d in (box if box is not None and box.holds(cell) else space).dimensions}
    for choice in choices:
        _trade(state, choice, [limits[d.name] for d in numbers])
    for dimension in space.dimensions:  # noise may have kept one, and others are plainer now
        state.accepts({dimension.name: dimension.plainest})
    kept = [d.name for d in space.dimensions if state.cell[d.name] != d.plainest]
    needed = tuple(name for name in kept if name in state.tried)
    untested = tuple(name for name in kept if name not in state.tried)
    return Shrunk(state.cell, state.outcome, state.measured, needed, untested)


def explains(space: Space, small: Shrunk, cell: Cell, fails: Callable[[Cell], bool]) -> bool:
    """Whether what `small` was shrunk to is why `cell` fails, too: it has all that was needed, at least as far, and the
    smallest cell fails with its values as well. Prompts of 40 tokens are no case of prompts of exactly 16."""
    dimensions = [d for d in space.dimensions if d.name in small.needed]
    if not all(_as_far(d, cell[d.name], small.cell[d.name]) for d in dimensions):
        return False
    alike = {**small.cell, **{d.name: cell[d.name] for d in dimensions}}
    return alike == small.cell or fails(alike)


def _as_far(dimension: Dimension, value: Value, small: Value) -> bool:
    if dimension.kind == "choice":
        return value == small
    plain = dimension.share(dimension.plainest)
    far, near = dimension.share(value) - plain, dimension.share(small) - plain
    return far * near >= 0 and abs(far) >= abs(near)


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
    tried: set[str] = field(default_factory=set)

    def accepts(self, values: Cell) -> bool:
        """Whether the cell still fails with these values; if so, it is the cell from now on."""
        tried = {**self.cell, **values}
        if tried == self.cell:
            return True
        if self.measured >= self.most or not self.more("shrink"):
            return False
        found = self.probe(tried, self.blocks, self.seed(self.measured))
        self.measured += 1
        self.tried |= set(values)
        if not self._fails(found):
            return False
        self.cell, self.outcome = tried, found
        return True

    def _fails(self, found: Outcome) -> bool:
        if self.outcome.wrong:
            return found.wrong > 0
        p = loss_p_value(found.gains)
        return p is not None and p < ALPHA and found.mean <= self.least


def _lower(state: _State, dimension: Dimension) -> None:
    """The plainest value, or else the one nearest to it that bisection finds failing."""
    if not state.accepts({dimension.name: dimension.plainest}):
        _bisect(state, dimension)


def _trade(state: _State, choice: Dimension, numbers: Sequence[Dimension]) -> None:
    """Try a kept choice's plainest value with a number that is needed anyway at the far end of its bounds."""
    for number in numbers:
        if state.cell[choice.name] == choice.plainest:
            return
        if state.cell[number.name] == number.plainest:
            continue
        far = max(number.ends(), key=lambda end: abs(number.share(end) - number.share(number.plainest)))
        if state.accepts({choice.name: choice.plainest, number.name: far}):
            _lower(state, number)


def _bisect(state: _State, dimension: Dimension) -> None:
    """Between the plainest value, which passes, and the present one, which fails."""
    passing, failing = dimension.share(dimension.plainest), dimension.share(state.cell[dimension.name])
    for _ in range(BISECTIONS):
        middle = (passing + failing) / 2
        value = dimension.at(middle)
        if value in (dimension.at(passing), dimension.at(failing)):
            return
        if state.accepts({dimension.name: value}):
            failing = middle
        else:
            passing = middle
