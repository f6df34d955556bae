"""A small writer of inline SVG: shapes, text, scales. Colours are CSS classes, so that themes apply.

Coordinates are pixels of the drawing's own view box. All text is escaped; numbers are rounded to 0.01.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] to [start, end] pixels, linearly or (`log`) by the logarithm; clamps to the ends."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        a, b, v = (self._t(x) for x in (self.low, self.high, value))
        share = 0.5 if b == a else (v - a) / (b - a)
        return self.start + max(0.0, min(1.0, share)) * (self.end - self.start)

    def _t(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.log else value

    def inside(self, value: float) -> bool:
        """Whether the value lies on the scale without clamping."""
        return self.low <= value <= self.high

    def ticks(self, count: int = 5) -> list[float]:
        """Round values on the scale, about `count` of them."""
        return (
            _log_ticks(self.low, self.high, count) if self.log else _linear_ticks(self.low, self.high, count)
        )


@dataclass
class Svg:
    """Collects elements; `render` gives the whole. `label` is what a screen reader says."""

    width: float
    height: float
    label: str
    parts: list[str] = field(default_factory=list)

    def line(self, a: Point, b: Point, css: str) -> None:
        """A straight line."""
        self.parts.append(
            f'<line x1="{_n(a[0])}" y1="{_n(a[1])}" x2="{_n(b[0])}" y2="{_n(b[1])}" class="{css}"/>'
        )

    def rect(self, x: float, y: float, width: float, height: float, css: str, title: str = "") -> None:
        """A rectangle, with an optional tooltip."""
        box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" height="{_n(max(height, 0))}"'
        self.parts.append(f'<rect {box} class="{css}">{_title(title)}</rect>')

    def circle(self, at: Point, radius: float, css: str, title: str = "") -> None:
        """A dot, with an optional tooltip."""
        self.parts.append(
            f'<circle cx="{_n(at[0])}" cy="{_n(at[1])}" r="{_n(radius)}" class="{css}">{_title(title)}</circle>'
        )

    def path(self, points: Sequence[Point], css: str, *, close: bool = False) -> None:
        """A polyline through the points."""
        if points:
            steps = "L".join(f"{_n(x)},{_n(y)}" for x, y in points)
            self.parts.append(f'<path d="M{steps}{"Z" if close else ""}" class="{css}"/>')

    def text(self, at: Point, content: str, css: str = "", anchor: str = "start") -> None:
        """Text, its baseline at the point; anchor: start, middle or end."""
        place = f'x="{_n(at[0])}" y="{_n(at[1])}" text-anchor="{anchor}"'
        self.parts.append(f'<text {place} class="{css}">{html.escape(content)}</text>')

    def render(self) -> str:
        """The element, ready to stand inside HTML."""
        box = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        head = f'<svg {box} role="img" aria-label="{html.escape(self.label)}" style="max-width:{_n(self.width)}px">'
        return head + "".join(self.parts) + "</svg>"


def step_path(ordered: Sequence[float], x: Scale, y: Scale, total: int) -> list[Point]:
    """An empirical distribution function of sorted finite values. `total` also counts infinite ones: with those the
    curve stays below 1 and runs on to the edge."""
    points: list[Point] = []
    for i, value in enumerate(ordered):
        points.append((x(value), y(i / total)))
        points.append((x(value), y((i + 1) / total)))
    if points and len(ordered) < total:
        points.append((x.end, points[-1][1]))
    return points


def _linear_ticks(low: float, high: float, count: int) -> list[float]:
    if high <= low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    if low <= 0 or high <= low:
        return [low]
    for mantissas in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        found = [m * 10.0**e for e in exponents for m in mantissas if low <= m * 10.0**e <= high * 1.0001]
        if len(found) >= max(3, count - 2):
            return found
    narrow = _linear_ticks(low, high, count)
    return [tick for tick in narrow if tick > 0]


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _title(text: str) -> str:
    return f"<title>{html.escape(text)}</title>" if text else ""
