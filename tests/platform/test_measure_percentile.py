"""The percentile function: floors from the binomial rule, upper order statistics, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from counterproof.measure.percentile import Measured, floor_count, order_interval, percentile, rank


@pytest.mark.parametrize(("p", "n"), [(0.5, 11), (0.9, 64), (0.99, 662), (0.999, 6636)])
def test_floors_are_those_of_the_binomial_rule(p: float, n: int) -> None:
    assert floor_count(p) == n
    assert stats.binom.cdf(1, n, 1 - p) < 0.01 <= stats.binom.cdf(1, n - 1, 1 - p)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.5, 2.0])
def test_a_percentile_outside_the_open_interval_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="p must lie"):
        floor_count(p)


def test_upper_order_statistic_by_hand() -> None:
    values = [float(v) for v in range(11, 0, -1)]
    assert percentile(values, 0.5) == Measured(6.0, 11)  # ceil(5.5) = 6th smallest
    assert percentile([float(v) for v in range(1, 65)], 0.9) == Measured(58.0, 64)  # ceil(57.6)
    assert percentile([float(v) for v in range(1, 663)], 0.99) == Measured(656.0, 662)  # ceil(655.38)


def test_rank_does_not_slip_where_p_n_is_whole() -> None:
    assert rank(700, 0.99) == 693
    assert rank(1000, 0.9) == 900
    assert rank(12, 0.5) == 6
    assert rank(1, 0.5) == 1


def test_below_the_floor_there_is_none() -> None:
    found = percentile([1.0] * 10, 0.5)
    assert found.value is None
    assert found.reason == "needs 11 samples, has 10"
    assert percentile([1.0] * 661, 0.99).value is None


def test_empty_and_missing_samples_are_never_a_number() -> None:
    assert percentile([], 0.5) == Measured(None, 0, "no samples")
    found = percentile([1.0] * 20 + [math.nan], 0.5)
    assert found.value is None
    assert "1 of 21 samples are missing" in found.reason


def test_failures_count_as_infinite() -> None:
    few = percentile([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0] + [math.inf] * 4, 0.5)
    assert few.value == 6.0
    many = percentile([1.0] * 5 + [math.inf] * 6, 0.5)
    assert many.value is None
    assert many.reason == "unbounded: 6 of 11 requests failed"
    assert percentile([math.inf] * 11, 0.5).value is None


def test_order_interval_by_hand_and_its_coverage() -> None:
    low, high = order_interval([float(v) for v in range(1, 101)], 0.5)
    assert (low, high) == (40.0, 61.0)
    assert order_interval([1.0, 2.0], 0.99) == (1.0, None) or order_interval([1.0, 2.0], 0.99)[1] is None
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(400):
        ends = order_interval(rng.exponential(1.0, 80), 0.5)
        assert ends[0] is not None and ends[1] is not None
        hits += ends[0] <= math.log(2) <= ends[1]
    assert hits / 400 >= 0.93
