"""Simulated error rates of the complete rule with its reserve blocks: claims at no effect, coverage, refusals.

Per block a study draws the log statistics of baseline, again and candidate; it is extended by two blocks as long as
its A/A interval is too wide to judge. What an engineer is told in the end must err no more often than registered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from counterproof.measure.interval import t_interval
from counterproof.measure.noise import a_a_gate, floor_log
from counterproof.plan.reserve import next_extent

PLAN = {"blocks": 6, "reserve_blocks": 6}
BAND = 0.05
STUDIES = 1500


@dataclass
class Rates:
    """Shares of all simulated studies; `covered` of those that ended valid."""

    refused: float
    claimed: float
    covered: float
    blocks: float


def simulate(noise: float, effect: float, *, reserve: bool, bursts: float = 0.0, seed: int = 1) -> Rates:
    """`bursts`: chance that a run is disturbed by 15 %."""
    rng = np.random.default_rng([seed, int(1e6 * noise), int(1e6 * abs(effect))])
    refused = claimed = covered = 0
    total = 0
    for _ in range(STUDIES):
        draws = rng.normal(0.0, noise, (3, 12)) + 0.15 * (rng.random((3, 12)) < bursts)
        again, candidate = draws[1] - draws[0], draws[2] - draws[0] + effect
        blocks = 6
        gate = a_a_gate(list(again[:blocks]), BAND)
        while reserve and gate.imprecise and (more := next_extent(PLAN, blocks)) is not None:
            blocks = more
            gate = a_a_gate(list(again[:blocks]), BAND)
        total += blocks
        interval, floor = t_interval(list(candidate[:blocks])), floor_log(list(again[:blocks]))
        assert interval is not None and floor is not None
        if not gate.passed:
            refused += 1
            continue
        covered += interval.contains(effect)
        claimed += not interval.contains(0.0) and abs(interval.mean) > floor
    valid = STUDIES - refused
    return Rates(refused / STUDIES, claimed / STUDIES, covered / max(valid, 1), total / STUDIES)


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.03, 0.045])
def test_a_true_null_is_rarely_claimed_and_intervals_cover(noise: float) -> None:
    rates = simulate(noise, 0.0, reserve=True)
    assert rates.claimed <= 0.07
    assert rates.covered >= 0.93


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.03])
def test_a_true_a_a_is_rarely_refused(noise: float) -> None:
    assert simulate(noise, 0.0, reserve=True).refused <= 0.05


def test_reserve_blocks_save_studies_that_a_burst_spoils() -> None:
    without = simulate(0.02, -0.3, reserve=False, bursts=0.06)
    with_reserve = simulate(0.02, -0.3, reserve=True, bursts=0.06)
    assert without.refused > 2 * with_reserve.refused > 0
    assert with_reserve.covered >= 0.93
    assert with_reserve.claimed > without.claimed
    assert 6 < with_reserve.blocks < 9


def test_reserve_blocks_do_not_hide_a_bias() -> None:
    """An A/A that is truly 8 % apart is refused, however many blocks are called up."""
    rng = np.random.default_rng(5)
    passed = 0
    for _ in range(500):
        again = rng.normal(math.log1p(0.08), 0.02, 12)
        blocks = 6
        gate = a_a_gate(list(again[:blocks]), BAND)
        while gate.imprecise and (more := next_extent(PLAN, blocks)) is not None:
            blocks = more
            gate = a_a_gate(list(again[:blocks]), BAND)
        passed += gate.passed is True
    assert passed / 500 <= stats.binom.ppf(0.99, 500, 0.01) / 500
