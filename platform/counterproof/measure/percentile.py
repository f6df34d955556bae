"""The one function that owns percentiles: the upper order statistic x(ceil(p n)), or nothing.

Source of the floor: MLPerf LoadGen early stopping (binomial). A percentile is claimed only from at least n
samples, the smallest n with P(Binom(n, 1 - p) <= 1) < 0.01: 11 for p50, 64 for p90, 662 for p99 and 6,636 for
p99.9. A failed request is +inf; a percentile that lands on one is unbounded and therefore NULL with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

METHOD = "upper-order-statistic x(ceil(p*n)); failed = infinite; NULL below the binomial floor"
PERCENTILES: dict[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Measured:
    """A finite number, or None with the reason why there is none. `n` samples went into it."""

    value: float | None
    n: int
    reason: str = ""


@lru_cache(maxsize=64)
def floor_count(p: float) -> int:
    """Smallest n for which percentile p (0 < p < 1) may be claimed. Raises ValueError outside (0, 1)."""
    if not 0.0 < p < 1.0:
        raise ValueError(f"p must lie in (0, 1), not {p}")
    low, high = 2, 4
    while not _enough(high, p):
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _enough(middle, p) else (middle + 1, high)
    return low


def _enough(n: int, p: float) -> bool:
    return bool(stats.binom.cdf(1, n, 1.0 - p) < 1.0 - CONFIDENCE)


def rank(n: int, p: float) -> int:
    """1-based rank ceil(p n), exact where p n is whole but its binary product is not (0.99 * 700)."""
    return max(1, min(n, math.ceil(round(p * n, 9))))


def percentile(values: Sequence[float] | NDArray[Any], p: float) -> Measured:
    """Percentile p of `values` (any unit; +inf for a failure). NaN is a missing sample and refuses the whole."""
    sample = np.asarray(values, dtype=np.float64)
    n = int(sample.size)
    if n == 0:
        return Measured(None, 0, "no samples")
    if np.isnan(sample).any():
        return Measured(None, n, f"{int(np.isnan(sample).sum())} of {n} samples are missing")
    if n < floor_count(p):
        return Measured(None, n, f"needs {floor_count(p)} samples, has {n}")
    found = float(np.sort(sample)[rank(n, p) - 1])
    if not math.isfinite(found):
        return Measured(None, n, f"unbounded: {int(np.isinf(sample).sum())} of {n} requests failed")
    return Measured(found, n)


def order_interval(
    values: Sequence[float] | NDArray[Any], p: float, alpha: float = 0.05
) -> tuple[float | None, float | None]:
    """Distribution-free interval [x(l), x(u)] of percentile p, l = PPF(a/2; n, p), u = PPF(1 - a/2; n, p) + 1.

    It assumes independent samples, so it is optimistic for requests of one run. An end that does not exist
    (rank outside the sample, or a failed request) is None.
    """
    sample = np.sort(np.asarray(values, dtype=np.float64))
    n = int(sample.size)
    if n == 0 or np.isnan(sample).any():
        return None, None
    low = int(stats.binom.ppf(alpha / 2, n, p))
    high = int(stats.binom.ppf(1 - alpha / 2, n, p)) + 1
    return _at(sample, low), _at(sample, high)


def _at(ordered: NDArray[np.float64], position: int) -> float | None:
    if not 1 <= position <= ordered.size:
        return None
    value = float(ordered[position - 1])
    return value if math.isfinite(value) else None
