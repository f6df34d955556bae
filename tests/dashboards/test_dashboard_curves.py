"""Distributions and timelines: exact at every point drawn, complete, and untouched by what else is shown."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from counterproof_dashboard import axes, curves
from counterproof_dashboard.curves import MOST_POINTS, POOLED

finite = st.floats(min_value=1e-3, max_value=1e6)


def brute_force(values: list[float], total: int, at: float) -> float:
    return sum(v <= at for v in values) / total


@given(st.lists(finite, min_size=1, max_size=60), st.integers(min_value=0, max_value=5))
def test_every_point_of_a_small_curve_is_exact(values: list[float], failed: int) -> None:
    total = len(values) + failed
    x, y = curves.ecdf_points(np.asarray([*values, *[math.inf] * failed]), total)
    assert len(x) == len(values) + 1
    assert (x[0], y[0]) == (min(values), 0.0)
    for value in set(values):
        highest = max(y[i] for i in range(1, len(x)) if x[i] == value)
        assert highest == pytest.approx(brute_force(values, total, value))
    assert y[-1] == pytest.approx(len(values) / total)


def test_a_large_curve_has_few_points_all_of_them_exact() -> None:
    values = np.random.default_rng(5).lognormal(size=200_000)
    x, y = curves.ecdf_points(values, values.size)
    assert len(x) <= MOST_POINTS
    assert x[0] == values.min()
    assert x[-1] == values.max()
    assert np.all(np.diff(x) >= 0)
    assert np.all(np.diff(y) > 0)
    ordered = np.sort(values)
    exact = np.searchsorted(ordered, x[1:], side="right") / values.size
    assert np.array_equal(y[1:], exact)


def test_no_values_give_no_curve() -> None:
    for values in (np.empty(0), np.array([np.inf, np.inf])):
        x, y = curves.ecdf_points(values, 2)
        assert x.size == y.size == 0


def test_failed_requests_keep_the_curve_below_one() -> None:
    samples = pd.DataFrame({"arm": "candidate", "block": 0, "value": [1.0, 2.0, 3.0, math.inf]})
    lines, _ = curves.ecdf_frames(samples)
    assert lines["fraction"].max() == 0.75


def test_the_dkw_band_is_as_wide_as_the_inequality_says() -> None:
    assert curves.dkw(100) == pytest.approx(0.1358, abs=1e-4)
    assert curves.dkw(0) == 1.0
    samples = pd.DataFrame({"arm": "baseline", "block": 0, "value": np.linspace(1, 2, 400)})
    _, band = curves.ecdf_frames(samples)
    middle = band.iloc[200]
    assert middle["high"] - middle["low"] == pytest.approx(2 * curves.dkw(400))
    assert band["low"].min() >= 0
    assert band["high"].max() <= 1


def test_hiding_one_arm_changes_no_other_curve() -> None:
    rng = np.random.default_rng(3)
    parts = [
        pd.DataFrame({"arm": arm, "block": block, "value": rng.lognormal(size=700)})
        for arm in ("baseline", "candidate", "again")
        for block in range(3)
    ]
    samples = pd.concat(parts, ignore_index=True)
    everything, all_bands = curves.ecdf_frames(samples)
    fewer, bands = curves.ecdf_frames(samples[samples["arm"] != "again"])
    kept = everything[everything["arm"] != "again"].reset_index(drop=True)
    assert len(fewer) > 1000
    pd.testing.assert_frame_equal(fewer, kept, check_exact=True)
    kept_bands = all_bands[all_bands["arm"] != "again"].reset_index(drop=True)
    pd.testing.assert_frame_equal(bands, kept_bands, check_exact=True)


def test_blocks_and_the_pooled_curve_are_all_there() -> None:
    samples = pd.DataFrame(
        {"arm": "baseline", "block": np.repeat(range(6), 11), "value": np.arange(66) + 1.0}
    )
    lines, _ = curves.ecdf_frames(samples)
    assert set(lines["curve"]) == {POOLED, *(f"block {b}" for b in range(6))}
    assert len(lines) == 6 * 12 + 67


def test_ten_thousand_runs_are_drawn_whole() -> None:
    """2,500 blocks of four arms: no block is left out, no run loses a value, and nothing is drawn twice."""
    blocks, arms, requests = 2_500, ("baseline", "candidate", "again", "slowed"), 12
    values = np.random.default_rng(9).lognormal(size=len(arms) * blocks * requests)
    samples = pd.DataFrame(
        {
            "arm": np.repeat(arms, blocks * requests),
            "block": np.tile(np.repeat(np.arange(blocks), requests), len(arms)),
            "value": values,
        }
    )
    lines, bands = curves.ecdf_frames(samples)
    assert len(lines) <= len(arms) * (blocks * (requests + 1) + MOST_POINTS)
    drawn = lines[lines["curve"] != POOLED].groupby(["arm", "curve"], sort=False)["value"].agg(["min", "max"])
    assert len(drawn) == len(arms) * blocks
    wanted = samples.groupby(["arm", "block"], sort=False)["value"].agg(["min", "max"])
    assert np.array_equal(np.sort(drawn["min"]), np.sort(wanted["min"]))
    assert np.array_equal(np.sort(drawn["max"]), np.sort(wanted["max"]))
    pooled = lines[lines["curve"] == POOLED]
    assert pooled.groupby("arm").size().max() <= MOST_POINTS
    assert set(pooled.groupby("arm")["fraction"].max()) == {1.0}
    assert set(bands["arm"]) == set(arms)


def test_a_long_timeline_keeps_its_peak() -> None:
    seconds = np.arange(100_000) / 100
    values = np.full(seconds.size, 10.0)
    values[54_321] = 99.0
    values[7] = np.nan
    points = curves.timeline_points(seconds, values)
    assert len(points) <= MOST_POINTS
    assert points["value"].max() == 99.0
    assert points.loc[points["value"].idxmax(), "seconds"] == 543.21
    assert points["seconds"].is_monotonic_increasing


@given(
    st.floats(min_value=1e-4, max_value=1e5),
    st.floats(min_value=1.001, max_value=1e7),
)
@example(1.0010000000000001, 1.001)
def test_ticks_are_few_round_and_inside(low: float, span: float) -> None:
    high = low * span
    ticks = axes.log_ticks(low, high)
    assert 1 <= len(ticks) <= 9
    assert all(low <= tick <= high for tick in ticks)
    assert ticks == sorted(set(ticks))


def test_ticks_of_usual_ranges() -> None:
    assert axes.log_ticks(0.45, 2.1) == [0.5, 0.7, 1, 1.5, 2]
    assert axes.log_ticks(0.97, 1.04) == [0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03, 1.04]
    assert axes.log_ticks(0.04, 2.1) == [0.05, 0.1, 0.2, 0.5, 1, 2]


def test_the_domain_holds_all_values_and_ignores_what_has_no_logarithm() -> None:
    low, high = axes.log_domain([2.0, None, math.inf, math.nan, -1.0, 0.0, 8.0]) or (0, 0)
    assert low < 2.0 < 8.0 < high
    assert axes.log_domain([None, 0.0]) is None
