"""The declared challenge space: its dimensions, their bounds, and the values where things tend to break.

A cell is one point: a value for every dimension. Whole numbers may be spaced by their logarithm, since a prompt of 16
tokens differs from one of 32 as 512 does from 1,024. A choice has no order; its first value is its plainest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import qmc

from counterproof.errors import InputError

Value = int | float | str
Cell = dict[str, Value]
MAX_DIMENSIONS = 12
SCHEMA = "counterproof-challenge-space/1"


@dataclass(frozen=True)
class Dimension:
    """One axis. kind: "int", "float" or "choice". `boundaries` are values to try besides the ends, e.g. a block's
    size and its neighbours; `plain` is the value that shrinking moves towards."""

    name: str
    kind: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    boundaries: tuple[Value, ...] = ()
    choices: tuple[str, ...] = ()
    plain: Value | None = None

    @property
    def plainest(self) -> Value:
        """Where shrinking ends."""
        if self.plain is not None:
            return self.plain
        return self.choices[0] if self.kind == "choice" else self.cast(self.low)

    def ends(self) -> tuple[Value, ...]:
        """The extreme values, without repetition; every choice of a choice."""
        if self.kind == "choice":
            return self.choices
        return tuple(dict.fromkeys((self.cast(self.low), self.cast(self.high))))

    def at(self, share: float) -> Value:
        """The value at `share` in [0, 1] of the axis."""
        if self.kind == "choice":
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        if self.log:
            return self.cast(math.exp(math.log(self.low) + share * math.log(self.high / self.low)))
        return self.cast(self.low + share * (self.high - self.low))

    def share(self, value: Value) -> float:
        """Inverse of `at`."""
        if self.kind == "choice":
            return (self.choices.index(str(value)) + 0.5) / len(self.choices)
        if self.high == self.low:
            return 0.5
        if self.log:
            return math.log(float(value) / self.low) / math.log(self.high / self.low)
        return (float(value) - self.low) / (self.high - self.low)

    def holds(self, value: Value) -> bool:
        """Whether a value lies between the bounds, or is one of the choices."""
        if self.kind == "choice":
            return value in self.choices
        return self.low <= float(value) <= self.high

    def cast(self, number: float) -> Value:
        """A number as this axis holds it, inside its bounds."""
        inside = min(max(number, self.low), self.high)
        return round(inside) if self.kind == "int" else inside


@dataclass(frozen=True)
class Space:
    """All dimensions, by name."""

    dimensions: tuple[Dimension, ...]

    def corners(self) -> Iterator[Cell]:
        """Every combination of extreme values."""
        for values in itertools.product(*(d.ends() for d in self.dimensions)):
            yield dict(zip((d.name for d in self.dimensions), values, strict=True))

    def boundary_cells(self) -> Iterator[Cell]:
        """For each boundary value the plainest cell with it, and the middle cell with it."""
        plain = {d.name: d.plainest for d in self.dimensions}
        middle = {d.name: d.at(0.5) for d in self.dimensions}
        for dimension in self.dimensions:
            for value in dimension.boundaries:
                yield {**plain, dimension.name: value}
                yield {**middle, dimension.name: value}

    def sobol(self, count: int, seed: int) -> list[Cell]:
        """`count` points of a scrambled Sobol sequence (Owen scrambling; scipy.stats.qmc)."""
        if count <= 0:
            return []
        sampler = qmc.Sobol(len(self.dimensions), scramble=True, rng=seed)
        points = sampler.random_base2(max(0, math.ceil(math.log2(count))))[:count]
        return [
            {d.name: d.at(float(share)) for d, share in zip(self.dimensions, point, strict=True)}
            for point in points
        ]

    def holds(self, cell: Mapping[str, Value]) -> bool:
        """Whether a cell lies in this space."""
        return all(d.holds(cell[d.name]) for d in self.dimensions)

    def nearest(self, cell: Mapping[str, Value]) -> Cell:
        """The cell of this space with every number of `cell` moved inside; choices stay."""
        return {
            d.name: cell[d.name] if d.kind == "choice" else d.cast(float(cell[d.name]))
            for d in self.dimensions
        }

    def near(self, cell: Mapping[str, Value], shares: Sequence[float]) -> Cell:
        """The cell moved by `shares` of each axis. A choice moves where the share passes a third of the axis."""
        moved: Cell = {}
        for dimension, step in zip(self.dimensions, shares, strict=True):
            value = cell[dimension.name]
            if dimension.kind == "choice" and abs(step) < 1 / 3:
                moved[dimension.name] = value
                continue
            moved[dimension.name] = dimension.at(min(max(dimension.share(value) + step, 0.0), 1.0))
        return moved


def read_space(value: Any) -> Space:
    """A space from its document. Raises InputError that names the field."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise InputError(f"a challenge space is of schema {SCHEMA}")
    found = value.get("dimensions")
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_DIMENSIONS:
        raise InputError(f"dimensions must be a list of 1 to {MAX_DIMENSIONS}")
    dimensions = tuple(_read_dimension(one) for one in found)
    if len({d.name for d in dimensions}) != len(dimensions):
        raise InputError("a dimension is named twice")
    return Space(dimensions)


def _read_dimension(one: Any) -> Dimension:
    if not isinstance(one, dict) or not isinstance(one.get("name"), str):
        raise InputError("a dimension needs a name")
    name, kind = one["name"], one.get("kind")
    if kind == "choice":
        choices = one.get("choices")
        if not isinstance(choices, list) or not choices or not all(isinstance(c, str) for c in choices):
            raise InputError(f"{name}: choices must be a list of texts")
        return Dimension(name, "choice", choices=tuple(dict.fromkeys(choices)), plain=one.get("plain"))
    if kind not in ("int", "float"):
        raise InputError(f"{name}: kind must be int, float or choice, not {kind!r}")
    low: Any = one.get("low")
    high: Any = one.get("high")
    log = bool(one.get("log", False))
    numbers = all(type(v) in (int, float) and math.isfinite(v) for v in (low, high))
    if not numbers or low > high or (log and low <= 0):
        raise InputError(f"{name}: low and high must be numbers, low <= high, and positive where log is true")
    boundaries = one.get("boundaries", [])
    if not isinstance(boundaries, list) or any(type(b) not in (int, float) for b in boundaries):
        raise InputError(f"{name}: boundaries must be a list of numbers")
    inside = tuple(b for b in boundaries if low <= b <= high)
    return Dimension(name, kind, float(low), float(high), log, inside, plain=one.get("plain"))
