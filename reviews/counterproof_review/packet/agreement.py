"""Does a replay's ratio agree with the author's? Equivalence within a fixed band, by t intervals over blocks.

Inputs are per-block log ratios. The difference D = mean(replay) - mean(author) has the Welch t interval; two
one-sided tests at 5 % (the 90 % interval) decide: inside the band CONSISTENT, wholly outside NOT CONSISTENT,
otherwise INCONCLUSIVE. The band is registered in the packet, so noise can only make the answer less decided.
This is no replication: the author's numbers were not sealed, so the strongest word is CONSISTENT.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from counterproof_review.packet.layout import MIN_BLOCKS

CONSISTENT = "CONSISTENT"
NOT_CONSISTENT = "NOT CONSISTENT"
INCONCLUSIVE = "INCONCLUSIVE"
INVALID = "INVALID"
BLIND = "SEALED"  # no answer: the results it would compare with are sealed
ALPHA = 0.05


@dataclass(frozen=True)
class Estimate:
    """Mean and standard deviation of `n` per-block log ratios; both None for n < 1 and n < 2."""

    n: int
    mean: float | None
    sd: float | None

    def interval(self, confidence: float) -> tuple[float, float] | None:
        """The two-sided t interval of the mean, None for fewer than two blocks."""
        if self.n < 2 or self.mean is None or self.sd is None:
            return None
        half = float(stats.t.ppf(0.5 + confidence / 2, self.n - 1)) * self.sd / math.sqrt(self.n)
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Agreement:
    """The answer, why, and the interval of D in log units (None where it does not exist)."""

    verdict: str
    reason: str
    difference: float | None = None
    low: float | None = None
    high: float | None = None


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and sample standard deviation of finite log ratios; a value that is not finite is a ValueError."""
    if not all(math.isfinite(v) for v in values):
        raise ValueError("a log ratio is not finite")
    n = len(values)
    if n == 0:
        return Estimate(0, None, None)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(1, mean, None)
    return Estimate(n, mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)))


def agree(author: Sequence[float], replay: Sequence[float], band: float) -> Agreement:
    """Compare two samples of per-block log ratios of the same pair; `band` is a fraction, e.g. 0.05.

    Either side with fewer than six blocks gives INCONCLUSIVE.
    """
    theirs, ours = estimate(author), estimate(replay)
    interval = _difference(theirs, ours)
    few = min(theirs.n, ours.n) < MIN_BLOCKS
    if interval is None:
        return Agreement(INCONCLUSIVE, _few(theirs.n, ours.n))
    middle, low, high = interval
    if few:
        return Agreement(INCONCLUSIVE, _few(theirs.n, ours.n), middle, low, high)
    edge = math.log1p(band)
    shown = f"the ratios differ by {_ratio(middle)} (90 % interval {_ratio(low)} to {_ratio(high)})"
    if -edge < low and high < edge:
        return Agreement(CONSISTENT, f"{shown}, inside the band of {100 * band:g} %", middle, low, high)
    if low > edge or high < -edge:
        return Agreement(NOT_CONSISTENT, f"{shown}, outside the band of {100 * band:g} %", middle, low, high)
    reason = f"{shown}, which reaches across the band's edge of {100 * band:g} %: noise forbids more"
    return Agreement(INCONCLUSIVE, reason, middle, low, high)


def controls(
    same: Sequence[float], delayed: Sequence[float] | None, higher_is_slower: bool
) -> Agreement | None:
    """Judge the replay's own controls; None when they stand.

    `same`: log ratios of the two equal arms; a 99 % interval without 0 is INVALID. `delayed`: of the arm with
    the injected delay; an interval that does not show the delay means that this set-up cannot see an effect
    of that size, which is INCONCLUSIVE, and a delay in the wrong direction is INVALID.
    """
    wide = estimate(same).interval(0.99)
    if len(same) < MIN_BLOCKS or wide is None:
        return None
    if not wide[0] <= 0.0 <= wide[1]:
        return Agreement(INVALID, "two equal arms differ here: this replay is no evidence for or against")
    seen = estimate(delayed).interval(0.95) if delayed is not None else None
    if seen is None:
        return None
    low, high = seen if higher_is_slower else (-seen[1], -seen[0])
    if high < 0.0:
        return Agreement(
            INVALID, "the arm with the injected delay came out faster: the clock or set-up is wrong"
        )
    if low <= 0.0:
        return Agreement(INCONCLUSIVE, "the injected delay is lost in noise here, so smaller effects are too")
    return None


def _difference(theirs: Estimate, ours: Estimate) -> tuple[float, float, float] | None:
    if theirs.mean is None or ours.mean is None or theirs.sd is None or ours.sd is None:
        return None
    a, b = theirs.sd**2 / theirs.n, ours.sd**2 / ours.n
    middle = ours.mean - theirs.mean
    if a + b == 0.0:
        return middle, middle, middle
    freedom = (a + b) ** 2 / (a**2 / (theirs.n - 1) + b**2 / (ours.n - 1))
    half = float(stats.t.ppf(1 - ALPHA, freedom)) * math.sqrt(a + b)
    return middle, middle - half, middle + half


def _few(author: int, replay: int) -> str:
    blocks = "1 block" if replay == 1 else f"{replay} blocks"
    return f"{blocks} here and {author} of the author's; at least {MIN_BLOCKS} of each are needed"


def _ratio(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f} %"
