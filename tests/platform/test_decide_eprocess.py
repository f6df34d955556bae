"""The sequential harm test: its value by hand, and its error rate under repeated looks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from counterproof.decide.eprocess import BASE_THRESHOLD, e_values, fires


def test_seven_straight_bad_blocks_fire_one_guardrail() -> None:
    path = e_values([0.2] * 7, 0.03)
    by_hand = sum((1 + bet) ** 7 for bet in (0.2, 0.4, 0.6, 0.8)) / 4
    assert path[-1] == pytest.approx(by_hand)
    assert path[5] < BASE_THRESHOLD <= path[6]
    assert fires([0.2] * 7, 0.03, 1)[0] is True
    assert fires([0.2] * 6, 0.03, 1)[0] is False


def test_the_threshold_grows_with_the_number_of_guardrails() -> None:
    fired, e, threshold = fires([0.2] * 7, 0.03, 3)
    assert (fired, threshold) == (False, 60.0)
    assert e < 60
    assert fires([0.2] * 9, 0.03, 3)[0] is True


def test_good_blocks_and_ties_never_fire() -> None:
    assert fires([0.0] * 50, 0.03, 1)[0] is False
    edge = math.log1p(0.03)
    assert e_values([edge] * 5, 0.03) == [1.0] * 5
    assert fires([], 0.03, 1) == (False, 1.0, 20.0)


def test_a_harm_that_was_proven_stays_proven() -> None:
    assert fires([0.2] * 8 + [-0.2] * 8, 0.03, 1)[0] is True


def test_looking_after_every_block_keeps_the_error_rate() -> None:
    rng = np.random.default_rng(2)
    edge = math.log1p(0.03)
    false = sum(fires((edge + rng.normal(0, 0.02, 40)).tolist(), 0.03, 1)[0] for _ in range(1500))
    assert false / 1500 <= 0.05
