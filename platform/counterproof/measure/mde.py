"""The minimum detectable effect of the complete rule, by seeded simulation.

The rule: the planned blocks are run; while the primary's A/A interval is too wide to judge and not biased, reserve
blocks are called up; then the A/A gates pass (the primary's, or the evidence is invalid, and the metric's own), the
candidate's interval excludes 0, and its effect exceeds the noise floor. The textbook value
(t.975 + t.80) s / sqrt(k) ignores all but the interval and has a real power of about 55 %. Each simulated study needs
a true effect of at least max(half width, floor) - mean error to be detected, so the effect detected with the wanted
power is a quantile of that over studies: no search is needed.

The noise is normal, with the sd of the observed block effects; a metric's A/A and the primary's are as correlated as
they were seen to be. Early stops for harm or futility, and checks other than A/A, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from counterproof.measure.interval import MIN_BLOCKS, Interval, t_interval
from counterproof.plan.reserve import next_extent, planned_at_most

TRIALS = 8_000
POWER = 0.8
# Below so many studies that pass A/A, what most of them detect is not said.
FEW = 100
Floats = NDArray[np.float64]
Blocks = Sequence[float | None]


@dataclass(frozen=True)
class Detectable:
    """What a study with this noise detects with the wanted power.

    `log`: smallest true effect (log units) of the whole rule; None: none, or not simulated, which `reason` tells.
    `passes`: share of simulated studies that A/A lets pass, the reserve included. `given_log`: smallest effect that
    those detect; None where fewer than FEW pass.
    """

    log: float | None
    passes: float | None = None
    given_log: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class CompleteRule:
    """The registered rule. `alpha`: two-sided level of the candidate's interval; `band`: of A/A, a fraction."""

    blocks: int
    reserve: int = 0
    alpha: float = 0.05
    band: float = 0.05
    power: float = POWER
    seed: int = 0

    @cached_property
    def extents(self) -> list[int]:
        """Numbers of blocks at which the study may end, in order."""
        plan = {"blocks": self.blocks, "reserve_blocks": self.reserve}
        found = [self.blocks]
        while (more := next_extent(plan, found[-1])) is not None:
            found.append(more)
        return found

    @property
    def most(self) -> int:
        """All blocks, reserve included."""
        return planned_at_most({"blocks": self.blocks, "reserve_blocks": self.reserve})

    def detectable(self, candidate: Blocks, again: Blocks, primary: Blocks | None = None) -> Detectable:
        """Per-block log ratios of candidate and again to baseline; `primary`: those of the primary metric's A/A,
        None where this is the primary."""
        c, a, p = t_interval(candidate), t_interval(again), t_interval(again if primary is None else primary)
        if self.blocks < MIN_BLOCKS:
            return Detectable(None, reason=f"below {MIN_BLOCKS} blocks there is no interval")
        if c is None or a is None:
            missing = "candidate" if c is None else "A/A"
            return Detectable(None, reason=f"the {missing} effect has no interval, so its noise is not known")
        if p is None:
            return Detectable(
                None, reason="the primary metric's A/A has no interval, so its noise is not known"
            )
        needed = self._needed(c, a, p.s, _correlation(again, again if primary is None else primary))
        value = float(np.quantile(needed, self.power, method="higher"))
        passing = needed[np.isfinite(needed)]
        given = float(np.quantile(passing, self.power, method="higher")) if passing.size >= FEW else None
        return Detectable(value if math.isfinite(value) else None, passing.size / needed.size, given)

    @cached_property
    def _draws(self) -> list[tuple[int, Floats, Floats]]:
        """Per extent `(blocks, means [4, TRIALS], covariances [4, 4, TRIALS])` over blocks of four standard normal
        errors: of baseline, again and candidate, and what the primary's A/A does not share with the metric's."""
        rng = np.random.default_rng([self.seed, self.blocks, 20260101])
        errors = rng.standard_normal((4, TRIALS, self.most))
        found = []
        for k in self.extents:
            part = errors[:, :, :k]
            means = part.mean(axis=2)
            apart = part - means[:, :, None]
            found.append((k, means, np.einsum("atk,btk->abt", apart, apart) / (k - 1)))
        return found

    def _needed(self, c: Interval, a: Interval, primary_s: float, correlation: float) -> Floats:
        """Per simulated study the true effect from which on it is detected (inf: A/A does not let it pass)."""
        shared = a.s / math.sqrt(2)
        own = math.sqrt(max(c.s**2 - shared**2, 0.0))
        alone = math.sqrt(max(1 - correlation**2, 0.0))
        judging = primary_s * np.array([-correlation / math.sqrt(2), correlation / math.sqrt(2), 0.0, alone])
        needed = np.full(TRIALS, math.inf)
        going = np.ones(TRIALS, dtype=bool)
        for k, means, covariances in self._draws:
            mean_a, se_a = _mean_and_error(np.array([-shared, shared, 0.0, 0.0]), means, covariances, k)
            mean_c, se_c = _mean_and_error(np.array([-shared, 0.0, own, 0.0]), means, covariances, k)
            biased, wide = self._refused(*_mean_and_error(judging, means, covariances, k), k)
            own_biased, own_wide = self._refused(mean_a, se_a, k)
            floor = np.abs(mean_a) + _t(0.975, k) * se_a
            least = np.maximum(_t(1 - self.alpha / 2, k) * se_c, floor) - mean_c
            valid = going & ~(biased | wide)
            claiming = valid & ~(own_biased | own_wide)
            needed[claiming] = np.maximum(least[claiming], 0.0)
            going &= wide & ~biased
        return needed

    def _refused(self, mean: Floats, error: Floats, k: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which A/A means are biased (99 % interval excludes 0), and which too wide (90 % interval leaves the band).

        Identical values have no spread: nothing to refuse."""
        spread = error > 0
        biased = spread & (np.abs(mean) > _t(0.995, k) * error)
        return biased, spread & (np.abs(mean) + _t(0.95, k) * error > math.log1p(self.band))


def _mean_and_error(weights: Floats, means: Floats, covariances: Floats, k: int) -> tuple[Floats, Floats]:
    """Mean and standard error over k blocks of a weighted sum of the errors, per study."""
    variance = np.einsum("a,b,abt->t", weights, weights, covariances)
    return weights @ means, np.sqrt(np.maximum(variance, 0.0) / k)


def _correlation(again: Blocks, primary: Blocks) -> float:
    """Between two metrics' A/A effects over the same blocks; 0 where one does not vary."""
    if again is primary:
        return 1.0
    pair = np.array([again, primary], dtype=np.float64)
    spread = pair.std(axis=1)
    if not spread.all():
        return 0.0
    apart = pair - pair.mean(axis=1, keepdims=True)
    return float(np.clip((apart[0] * apart[1]).mean() / (spread[0] * spread[1]), -1.0, 1.0))


def _t(quantile: float, k: int) -> float:
    return float(stats.t.ppf(quantile, k - 1))
