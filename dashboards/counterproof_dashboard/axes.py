"""Where the ticks of a logarithmic axis stand: few, round, and there also when the range is narrow."""

from __future__ import annotations

import math
from collections.abc import Iterable


def log_domain(values: Iterable[float | None], *, pad: float = 0.06) -> tuple[float, float] | None:
    """Lowest and highest of the positive finite values with some room on both sides; None without any."""
    found = [v for v in values if v is not None and math.isfinite(v) and v > 0]
    if not found:
        return None
    low, high = math.log(min(found)), math.log(max(found))
    room = max((high - low) * pad, 0.004)
    return math.exp(low - room), math.exp(high + room)


def log_ticks(low: float, high: float, *, most: int = 9) -> list[float]:
    """At most `most` round numbers within [low, high], 0 < low < high.

    Wide ranges get decades or 1-2-5 steps, narrow ones equal steps of 1, 2 or 5 times a power of ten.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [_tidy(step * 10.0**decade) for decade in decades for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if 4 <= len(inside) <= most:
            return inside
    if high / low > 1_000:
        stride = math.ceil(len(decades) / most)
        return [10.0**decade for decade in list(decades)[::stride] if low <= 10.0**decade <= high]
    return _even_ticks(low, high, most)


def _even_ticks(low: float, high: float, most: int) -> list[float]:
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (power, 2 * power, 5 * power, 10 * power):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first + 1 <= most:
            ticks = [_tidy(index * step) for index in range(first, last + 1)]
            # Without its binary dust the outermost one may lie outside by as much.
            return [tick for tick in ticks if low <= tick <= high]
    return []


def _tidy(value: float) -> float:
    """Drop the binary dust of a decimal number."""
    return float(f"{value:.9g}")
