"""The exact sign-flip test of a symmetric mean, printed beside the t interval.

Source: Fisher's randomisation test; all 2^k sign patterns. With six blocks the smallest two-sided p-value is
2 / 64 = 0.031, so under Holm with two metrics it can never reject: it informs, the t interval decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_BLOCKS = 20


def sign_flip_p(values: Sequence[float | None]) -> float | None:
    """Two-sided exact p-value of mean 0; None without values, above 20 of them, or when one is missing."""
    present = [v for v in values if v is not None]
    sample = np.asarray(present, dtype=np.float64)
    k = len(values)
    if k == 0 or k > MAX_BLOCKS or len(present) < k or not np.isfinite(sample).all():
        return None
    observed = abs(float(sample.sum()))
    sums = np.zeros(1)
    for value in sample:
        sums = np.concatenate([sums + value, sums - value])
    # Ties with the observed pattern count as at least as extreme; rounding must not lose them.
    tolerance = 1e-12 * max(1.0, float(np.abs(sample).sum()))
    return float(np.mean(np.abs(sums) >= observed - tolerance))
