"""Intervals, the sign-flip test, Holm, the noise floor, the A/A gate and the minimum detectable effect."""

from __future__ import annotations

import math

import numpy as np
import pytest

from counterproof.measure.effects import effect
from counterproof.measure.holm import holm
from counterproof.measure.interval import log_ratios, t_interval, t_p_value
from counterproof.measure.mde import CompleteRule
from counterproof.measure.noise import a_a_gate, floor_log
from counterproof.measure.signflip import sign_flip_p

D = [-0.70, -0.68, -0.69, -0.71, -0.66, -0.72]


def test_t_interval_by_hand() -> None:
    found = t_interval(D)
    assert found is not None
    assert found.k == 6
    assert found.mean == pytest.approx(-0.693333, abs=1e-6)
    assert found.s == pytest.approx(0.0216025, abs=1e-7)
    half = 2.570582 * 0.0216025 / math.sqrt(6)  # t(.975, 5) = 2.570582
    assert found.high - found.mean == pytest.approx(half, rel=1e-5)
    assert found.mean - found.low == pytest.approx(half, rel=1e-5)


@pytest.mark.parametrize(
    "values", [[], D[:5], [*D[:5], None], [*D[:5], math.nan], [*D, None], [*D, math.inf]]
)
def test_no_interval_from_too_few_or_missing_blocks(values: list[float | None]) -> None:
    assert t_interval(values) is None
    assert t_p_value(values) is None
    assert floor_log(values) is None
    assert a_a_gate(values, 0.05).passed is None
    assert CompleteRule(6).detectable(values, D).passes is None


def test_log_ratios_refuse_what_has_no_logarithm() -> None:
    assert log_ratios([2.0, None, 0.0, math.nan, 1.0], [1.0, 1.0, 1.0, 1.0, -1.0]) == [
        math.log(2.0),
        None,
        None,
        None,
        None,
    ]


def test_effect_says_why_there_is_none() -> None:
    assert "needs 6 blocks, has 3" in effect([1.0] * 3, [2.0] * 3)["reason"]
    assert effect([1.0] * 3, [2.0] * 3)["ratio"] == pytest.approx(2.0)
    zero = effect([0.0] * 6, [5.0, 6, 5, 6, 5, 6])
    assert zero["ratio"] is None
    assert zero["difference"]["mean"] == 5.5
    assert zero["difference"]["ci_low"] > 0
    gap = effect([1.0] * 6, [1.0] * 5 + [None], "unbounded")
    assert (gap["ratio"], gap["ci_low"], gap["reason"]) == (None, None, "unbounded")
    assert effect([], [])["reason"] == "no complete block"


def test_sign_flip_is_exact() -> None:
    assert sign_flip_p(D) == 2 / 64  # only the pattern itself and its mirror image
    assert sign_flip_p([1.0, -1.0, 1.0, -1.0]) == 1.0
    assert sign_flip_p([3.0, 2.0, 1.0]) == 2 / 8
    assert sign_flip_p([3.0, 2.0, -1.0]) == 4 / 8
    assert sign_flip_p([]) is None
    assert sign_flip_p([1.0, None]) is None


def test_holm_by_hand() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": None})
    assert adjusted["a"] == pytest.approx(0.04)
    assert adjusted["c"] == pytest.approx(0.09)
    assert adjusted["b"] == pytest.approx(0.09)  # monotone
    assert adjusted["d"] is None
    assert holm({"a": 0.02}, family=4)["a"] == pytest.approx(0.08)


def test_noise_floor_by_hand() -> None:
    again = [0.01, -0.02, 0.015, -0.005, 0.02, 0.01]
    mean, s = float(np.mean(again)), float(np.std(again, ddof=1))
    assert floor_log(again) == pytest.approx(abs(mean) + 2.570582 * s / math.sqrt(6), rel=1e-6)
    assert floor_log([0.0] * 6, absolute=0.001) == 0.001


def test_a_a_gate_has_both_edges() -> None:
    assert a_a_gate([0.01, -0.02, 0.015, -0.005, 0.02, 0.01], 0.05).passed is True
    shifted = a_a_gate([0.020, 0.021, 0.019, 0.022, 0.018, 0.020], 0.05)
    assert shifted.passed is False
    assert "excludes 0" in shifted.detail
    wide = a_a_gate([0.1, -0.1, 0.09, -0.08, 0.1, -0.12], 0.05)
    assert wide.passed is False
    assert "leaves the band" in wide.detail


def rule(candidate: np.ndarray, again: np.ndarray) -> bool:
    """The complete rule, from the functions that the comparison uses."""
    found, floor = t_interval(candidate.tolist()), floor_log(again.tolist())
    assert found is not None and floor is not None
    good = a_a_gate(again.tolist(), 0.05).passed is True
    return good and not found.contains(0.0) and abs(found.mean) > floor


def studies(s: float, trials: int, effect_log: float = 0.0) -> list[tuple[np.ndarray, np.ndarray]]:
    """(candidate, again) log ratios over 6 blocks that share their baseline; sd of a ratio is `s`."""
    rng = np.random.default_rng(11)
    made = []
    for _ in range(trials):
        base, again, candidate = rng.normal(0.0, s / math.sqrt(2), (3, 6))
        made.append((candidate - base + effect_log, again - base))
    return made


def test_false_claims_from_equal_arms_are_rare() -> None:
    claims = [rule(c, a) for c, a in studies(0.02, 600)]
    assert sum(claims) / 600 <= 0.07


@pytest.mark.parametrize(("s", "share"), [(0.02, 0.96), (0.03, 0.88)])
def test_true_a_a_pairs_pass_the_gate(s: float, share: float) -> None:
    passed = [a_a_gate(a.tolist(), 0.05).passed for _, a in studies(s, 600)]
    assert sum(p is True for p in passed) / 600 >= share


def test_interval_covers_the_truth() -> None:
    found = [t_interval(c.tolist()) for c, _ in studies(0.03, 800, -0.1)]
    assert sum(f is not None and f.contains(-0.1) for f in found) / 800 >= 0.93


def test_minimum_detectable_effect_is_that_of_the_complete_rule() -> None:
    values = studies(0.02, 1)[0]
    scaled = [v / v.std(ddof=1) * 0.02 for v in values]
    smallest = CompleteRule(6, seed=3).detectable(scaled[0].tolist(), scaled[1].tolist()).log
    assert smallest is not None
    detected = [rule(c, a) for c, a in studies(0.02, 800, smallest)]
    assert 0.75 <= sum(detected) / 800 <= 0.86
    textbook = (2.5706 + 0.9195) * 0.02 / math.sqrt(6)
    assert smallest > textbook  # the floor costs power


def test_no_effect_is_detectable_where_the_gate_refuses_most_studies() -> None:
    wild = (np.array([1.0, -1.0, 0.8, -0.9, 1.1, -1.0]) * 0.2).tolist()
    refused = CompleteRule(6).detectable(wild, wild)
    assert refused.log is None
    assert refused.passes is not None and refused.passes < 0.01
    assert CompleteRule(6).detectable([0.0] * 6, [0.0] * 6).log == 0.0
