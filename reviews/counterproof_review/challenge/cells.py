"""Which cells a search probes: corners, boundaries and a Sobol sequence first, then what lies near the worst.

Only a failure inside the box of the claim cuts it, and that box may be one point in some dimensions, which no draw from
the whole space would hit. So half of the Sobol cells are drawn from the box, half of the refinements pull the worst
cells outside to their nearest point in it, and the neighbours of a cell inside stay inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from counterproof_review.challenge.space import Cell, Space, Value

Key = tuple[tuple[str, Value], ...]
ATTEMPTS = 64


def key(cell: Cell) -> Key:
    """What tells two cells apart."""
    return tuple(cell.items())


def first(space: Space, box: Space | None, room: int, rng: np.random.Generator) -> list[tuple[Cell, str]]:
    """At most `room` cells with their phases: corners and boundary cells in random order, at most half, and Sobol's.

    They take turns, so that a search that has to stop early has tried some of each. `box`: the part of the space that
    the claim is about, None for all of it.
    """
    corners = list(space.corners())
    corner_cells = [(corners[i], "corner") for i in rng.permutation(len(corners))]
    boundary = [(cell, "boundary") for cell in space.boundary_cells()]
    boundary = [boundary[i] for i in rng.permutation(len(boundary))]
    some = boundary[: room // 3]
    corner_cells = corner_cells[: max(0, room // 2 - len(some))]
    left = room - len(some) - len(corner_cells)
    sobol = [(cell, "sobol") for cell in _sobol(space, box, left, int(rng.integers(1 << 31)))]
    turns = itertools.zip_longest(some, corner_cells, sobol)
    return _distinct([one for turn in turns for one in turn if one is not None])


def _sobol(space: Space, box: Space | None, count: int, seed: int) -> list[Cell]:
    if box is None:
        return space.sobol(count, seed)
    within, around = box.sobol(count - count // 2, seed), space.sobol(count // 2, seed + 1)
    pairs = itertools.zip_longest(within, around)
    return [cell for pair in pairs for cell in pair if cell is not None]


def _distinct(cells: Sequence[tuple[Cell, str]]) -> list[tuple[Cell, str]]:
    seen: dict[Key, tuple[Cell, str]] = {}
    for cell, phase in cells:
        seen.setdefault(key(cell), (cell, phase))
    return list(seen.values())


def pulled_in(box: Space, bad: Iterable[Cell], known: Collection[Key]) -> Cell | None:
    """The point of the box nearest to the first cell outside whose point is not known yet."""
    nearest = (box.nearest(cell) for cell in bad if not box.holds(cell))
    return next((cell for cell in nearest if key(cell) not in known), None)


def neighbour(
    space: Space, box: Space | None, worst: Sequence[Cell], known: Collection[Key], rng: np.random.Generator
) -> Cell | None:
    """A neighbour of one of the worst cells, nearer with every attempt; None when all are known."""
    for attempt in range(ATTEMPTS):
        start = worst[int(rng.integers(len(worst)))]
        width = 0.25 * 0.97**attempt
        steps = rng.normal(0.0, width, len(space.dimensions)) * (rng.random(len(space.dimensions)) < 0.5)
        around = space if box is None or not box.holds(start) else box
        cell = around.near(start, steps.tolist())
        if key(cell) not in known:
            return cell
    return None
