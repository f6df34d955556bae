"""The minimum detectable effect of the complete rule, by seeded simulation.

The rule: the A/A gate passes, the candidate's interval excludes 0, and its effect exceeds the noise floor. The
textbook value (t.975 + t.80) s / sqrt(k) ignores the floor and has a real power of about 55 %. Each simulated
study needs a true effect of at least max(half width, floor) - mean error to be detected, so the effect detected
with the wanted power is a quantile of that over studies: no search is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from counterproof.measure.interval import MIN_BLOCKS, t_interval

TRIALS = 8_000


def mde_log(
    candidate: Sequence[float | None],
    again: Sequence[float | None],
    *,
    alpha: float = 0.05,
    band: float = 0.05,
    power: float = 0.8,
    seed: int = 0,
) -> float | None:
    """Smallest true effect (log units) that a study with this noise detects with `power`.

    The noise is the sd of the observed block effects. None below six blocks, or when the A/A gate would refuse
    so many studies that no effect reaches the power.
    """
    c, a = t_interval(candidate), t_interval(again)
    if c is None or a is None:
        return None
    k = min(c.k, a.k)
    if k < MIN_BLOCKS:
        return None
    shared = a.s / math.sqrt(2)
    own = math.sqrt(max(c.s**2 - shared**2, 0.0))
    needed = _needed_effects(k, shared, own, alpha, band, seed)
    value = float(np.quantile(needed, power, method="higher"))
    return value if math.isfinite(value) else None


def _needed_effects(
    k: int, shared: float, own: float, alpha: float, band: float, seed: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Per simulated study the true effect from which on it is detected (inf: the A/A gate refuses it)."""
    rng = np.random.default_rng([seed, k, 20260101])
    base = rng.normal(0.0, shared, (TRIALS, k))
    d_again = rng.normal(0.0, shared, (TRIALS, k)) - base
    d_candidate = rng.normal(0.0, own, (TRIALS, k)) - base
    root = math.sqrt(k)
    mean_a, se_a = d_again.mean(axis=1), d_again.std(axis=1, ddof=1) / root
    mean_c, se_c = d_candidate.mean(axis=1), d_candidate.std(axis=1, ddof=1) / root
    t99, t95, t90 = (float(stats.t.ppf(q, k - 1)) for q in (0.995, 0.975, 0.95))
    floor = np.abs(mean_a) + t95 * se_a
    needed = np.maximum(float(stats.t.ppf(1 - alpha / 2, k - 1)) * se_c, floor) - mean_c
    refused = (np.abs(mean_a) > t99 * se_a) | (np.abs(mean_a) + t90 * se_a > math.log1p(band))
    # Identical values have no spread: nothing to refuse, nothing to exceed.
    refused &= se_a > 0
    needed[refused] = math.inf
    return np.asarray(np.maximum(needed, 0.0), dtype=np.float64)
