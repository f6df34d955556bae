"""The noise floor: how large an effect two identical arms of this study can show, and the A/A gate.

Floor = |mean d| + t(.975, k-1) s / sqrt(k) over d = ln(again / baseline), the layout being that of the
candidate. The gate fails only if the 99 % interval of the A/A effect excludes 0, or its 90 % interval leaves the
preregistered band: a tighter gate would refuse most true A/A pairs at 2 to 3 % of run noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from counterproof.measure.interval import MIN_BLOCKS, t_interval


@dataclass(frozen=True)
class Gate:
    """`passed` None: not decidable yet; the detail says why. `imprecise`: refused for its width alone, the 99 %
    interval holding 0, so that more blocks may still show what these could not."""

    passed: bool | None
    detail: str
    imprecise: bool = False


def floor_log(again: Sequence[float | None], absolute: float = 0.0) -> float | None:
    """The floor in log units, at least `absolute`; None below six blocks."""
    interval = t_interval(again)
    if interval is None:
        return None
    return max(abs(interval.mean) + (interval.high - interval.mean), absolute)


def a_a_gate(again: Sequence[float | None], band: float) -> Gate:
    """Judge the A/A log ratios against `band` (a fraction, e.g. 0.05)."""
    wide, narrow = t_interval(again, alpha=0.01), t_interval(again, alpha=0.10)
    if wide is None or narrow is None:
        present = sum(v is not None for v in again)
        return Gate(None, f"needs {MIN_BLOCKS} blocks of 'again' against 'baseline', has {present}")
    if not wide.contains(0.0):
        return Gate(False, f"the 99 % interval [{_pct(wide.low)}, {_pct(wide.high)}] of A/A excludes 0")
    edge = math.log1p(band)
    if narrow.low < -edge or narrow.high > edge:
        inside = f"[{_pct(narrow.low)}, {_pct(narrow.high)}]"
        detail = f"the 90 % interval {inside} of A/A leaves the band of {100 * band:g} %"
        return Gate(False, detail, imprecise=True)
    return Gate(
        True, f"A/A effect {_pct(narrow.mean)}, 90 % interval [{_pct(narrow.low)}, {_pct(narrow.high)}]"
    )


def _pct(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.2f} %"
