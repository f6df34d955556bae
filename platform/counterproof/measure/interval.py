"""The t interval on per-block log ratios: the one interval that decides.

Source: paired t on log ratios of interleaved runs holds its size under drift, where tests over pooled requests
reject true nulls in over 40 % of studies. The unit of inference is the block; below six blocks there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

MIN_BLOCKS = 6


@dataclass(frozen=True)
class Interval:
    """mean and sd of `k` block values, and the two-sided interval at 1 - alpha."""

    mean: float
    low: float
    high: float
    s: float
    k: int

    def contains(self, value: float) -> bool:
        """Whether `value` lies inside (ends included)."""
        return self.low <= value <= self.high


def t_interval(values: Sequence[float | None], alpha: float = 0.05) -> Interval | None:
    """Two-sided t interval of the mean at 1 - alpha, or None below six values or when one is missing.

    A missing block is never skipped: a block whose statistic is unbounded because requests failed would be the
    very one that leaves the sample.
    """
    present = [v for v in values if v is not None and math.isfinite(v)]
    if len(present) < len(values) or len(present) < MIN_BLOCKS:
        return None
    sample = np.asarray(present, dtype=np.float64)
    k = len(present)
    mean, s = float(sample.mean()), float(sample.std(ddof=1))
    half = float(stats.t.ppf(1 - alpha / 2, k - 1)) * s / math.sqrt(k)
    return Interval(mean, mean - half, mean + half, s, k)


def log_ratios(numerator: Sequence[float | None], denominator: Sequence[float | None]) -> list[float | None]:
    """Per block ln(numerator / denominator); None where either is missing, not finite or not positive."""
    return [_log_ratio(a, b) for a, b in zip(numerator, denominator, strict=True)]


def _log_ratio(a: float | None, b: float | None) -> float | None:
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)) or a <= 0 or b <= 0:
        return None
    return math.log(a / b)


def differences(first: Sequence[float | None], second: Sequence[float | None]) -> list[float | None]:
    """Per block first - second; None where either is missing."""
    return [None if a is None or b is None else a - b for a, b in zip(first, second, strict=True)]


def t_p_value(values: Sequence[float | None], null: float = 0.0, side: str = "two") -> float | None:
    """p-value of the t test of mean == null (side "two") or mean <= null (side "greater"); None without an interval."""
    interval = t_interval(values)
    if interval is None:
        return None
    if interval.s == 0.0:
        beyond = interval.mean > null if side == "greater" else interval.mean != null
        return 0.0 if beyond else 1.0
    t = (interval.mean - null) / (interval.s / math.sqrt(interval.k))
    if side == "greater":
        return float(stats.t.sf(t, interval.k - 1))
    return float(2 * stats.t.sf(abs(t), interval.k - 1))
