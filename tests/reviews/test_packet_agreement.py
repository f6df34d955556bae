"""The replay's answer: fixed band, honest about noise, never more than CONSISTENT."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from counterproof_review.packet import agreement, judgement, schedule
from counterproof_review.packet.agreement import agree, controls, estimate

BAND = 0.05


def draw(mean: float, sd: float, n: int, seed: int) -> list[float]:
    return [float(v) for v in np.random.default_rng(seed).normal(mean, sd, n)]


def exact(mean: float, sd: float, n: int) -> list[float]:
    """n values with exactly this mean and sample standard deviation."""
    base = np.linspace(-1, 1, n)
    return [float(v) for v in mean + sd * base / base.std(ddof=1)]


def test_the_same_effect_with_little_noise_is_consistent() -> None:
    answer = agree(exact(-0.7, 0.01, 6), exact(-0.69, 0.01, 6), BAND)
    assert answer.verdict == "CONSISTENT"
    assert answer.low is not None and answer.high is not None and answer.low < 0.01 < answer.high


def test_an_inflated_claim_is_not_consistent() -> None:
    assert agree(exact(-0.7, 0.01, 6), exact(-0.5, 0.01, 6), BAND).verdict == "NOT CONSISTENT"
    assert agree(exact(-0.5, 0.01, 6), exact(-0.7, 0.01, 6), BAND).verdict == "NOT CONSISTENT"


def test_noise_forbids_more_than_inconclusive() -> None:
    for there, here in ((-0.7, -0.7), (-0.7, -0.55)):
        answer = agree(exact(there, 0.2, 6), exact(here, 0.2, 6), BAND)
        assert answer.verdict == "INCONCLUSIVE"
        assert "noise forbids more" in answer.reason


@pytest.mark.parametrize(("author", "replay"), [(6, 5), (5, 6), (6, 1), (6, 0), (1, 6), (0, 0)])
def test_fewer_than_six_blocks_decide_nothing(author: int, replay: int) -> None:
    answer = agree([-0.7] * author, [-0.7] * replay, BAND)
    assert answer.verdict == "INCONCLUSIVE"
    assert "at least 6" in answer.reason


def test_no_spread_at_all() -> None:
    assert agree([-0.7] * 6, [-0.7] * 6, BAND).verdict == "CONSISTENT"
    assert agree([-0.7] * 6, [-0.5] * 6, BAND).verdict == "NOT CONSISTENT"


def test_the_interval_is_welchs_by_hand() -> None:
    """n = 6 and 8, sd 0.02 and 0.03: standard error and degrees of freedom worked out separately."""
    from scipy import stats

    answer = agree(exact(0.10, 0.02, 6), exact(0.12, 0.03, 8), BAND)
    a, b = 0.02**2 / 6, 0.03**2 / 8
    freedom = (a + b) ** 2 / (a**2 / 5 + b**2 / 7)
    half = stats.t.ppf(0.95, freedom) * math.sqrt(a + b)
    assert answer.difference == pytest.approx(0.02)
    assert answer.low == pytest.approx(0.02 - half)
    assert answer.high == pytest.approx(0.02 + half)


def test_error_rates_by_simulation() -> None:
    """2,000 studies each: truth at the band's edge passes as consistent in about 5 %, and equal truths are
    called different in far fewer."""
    edge = math.log1p(BAND)
    passed = wrong = found = 0
    for seed in range(2000):
        author = draw(-0.5, 0.03, 8, 3 * seed)
        passed += agree(author, draw(-0.5 + edge, 0.03, 8, 3 * seed + 1), BAND).verdict == "CONSISTENT"
        wrong += agree(author, draw(-0.5, 0.03, 8, 3 * seed + 2), BAND).verdict == "NOT CONSISTENT"
        found += agree(author, draw(-0.5, 0.03, 8, 3 * seed + 2), BAND).verdict == "CONSISTENT"
    assert passed / 2000 <= 0.07
    assert wrong / 2000 <= 0.005
    assert found / 2000 >= 0.6


def test_estimates() -> None:
    assert estimate([]).mean is None
    assert (estimate([2.0]).mean, estimate([2.0]).sd) == (2.0, None)
    assert estimate([1.0, 3.0]).sd == pytest.approx(math.sqrt(2))
    with pytest.raises(ValueError):
        estimate([math.nan])


# -- controls -----------------------------------------------------------------------------------------------


def test_controls_that_stand() -> None:
    assert controls(exact(0.001, 0.02, 6), exact(0.2, 0.02, 6), True) is None
    assert controls(exact(0.001, 0.02, 6), exact(-0.2, 0.02, 6), False) is None


def test_equal_arms_that_differ_are_invalid_and_never_against_the_author() -> None:
    answer = controls(exact(0.1, 0.01, 6), exact(0.2, 0.01, 6), True)
    assert answer is not None and answer.verdict == "INVALID"


def test_a_delay_that_is_not_seen_leaves_it_open_and_one_of_the_wrong_sign_is_invalid() -> None:
    lost = controls(exact(0.0, 0.02, 6), exact(0.005, 0.05, 6), True)
    assert lost is not None and lost.verdict == "INCONCLUSIVE"
    wrong = controls(exact(0.0, 0.02, 6), exact(-0.2, 0.02, 6), True)
    assert wrong is not None and wrong.verdict == "INVALID"


# -- from opened results to the answer ----------------------------------------------------------------------

ARMS = {"baseline": "0b", "candidate": "0c", "again": "0a", "slowed": "0d"}


def results(effect: float, **changes: Any) -> dict[str, Any]:
    return {
        "arms": ARMS,
        "primary": {"metric": "tpot_ms", "statistic": "p50", "better": "lower"},
        "evidence_valid": True,
        "log_ratios": {
            "candidate": exact(effect, 0.01, 6),
            "again": exact(0, 0.01, 6),
            "slowed": exact(0.2, 0.01, 6),
        },
        **changes,
    }


def measured(
    effect: float, *, again: float = 0.0, sd: float = 0.01, blocks: int = 6
) -> dict[str, list[float | None]]:
    values = {
        "0b": [10.0] * blocks,
        "0c": [10.0 * math.exp(v) for v in exact(effect, sd, blocks)],
        "0a": [10.0 * math.exp(v) for v in exact(again, sd, blocks)],
        "0d": [10.0 * math.exp(v) for v in exact(0.2, sd, blocks)],
    }
    return {name: list(column) for name, column in values.items()}


def verdict(
    found: dict[str, Any], values: dict[str, list[float | None]], *, same_hardware: bool = True
) -> str:
    answer, _ = judgement.judge(found, values, BAND, same_hardware=same_hardware)
    return answer.verdict


def test_whole_answers() -> None:
    assert verdict(results(-0.7), measured(-0.7)) == "CONSISTENT"
    assert verdict(results(-0.7), measured(-0.5)) == "NOT CONSISTENT"
    assert verdict(results(-0.7), measured(-0.7, again=0.3)) == "INVALID"
    assert verdict(results(-0.7), measured(-0.5, again=0.3)) == "INVALID"
    assert verdict(results(-0.7), measured(-0.7, blocks=3)) == "INCONCLUSIVE"
    assert verdict(results(-0.7), measured(-0.7, sd=0.3)) == "INCONCLUSIVE"


def test_other_hardware_contradicts_nothing() -> None:
    assert verdict(results(-0.7), measured(-0.5), same_hardware=False) == "INCONCLUSIVE"
    assert verdict(results(-0.7), measured(-0.7), same_hardware=False) == "CONSISTENT"


def test_a_missing_value_or_invalid_author_evidence_is_no_agreement() -> None:
    values = measured(-0.7)
    values["0c"][2] = None
    assert verdict(results(-0.7), values) == "INCONCLUSIVE"
    missing = results(-0.7)
    missing["log_ratios"]["candidate"][0] = None
    assert verdict(missing, measured(-0.7)) == "INCONCLUSIVE"
    assert verdict(results(-0.7, evidence_valid=False), measured(-0.7)) == "INCONCLUSIVE"


def test_pairs_need_no_arm_map_and_cover_every_pair() -> None:
    rows = judgement.pairs(measured(-0.7))
    assert len(rows) == 6
    by_pair = {(row["numerator"], row["denominator"]): row for row in rows}
    assert by_pair[("0b", "0c")]["ratio"] == pytest.approx(math.exp(0.7))
    assert all(row["n"] == 6 and row["ratio_ci"][0] <= row["ratio"] <= row["ratio_ci"][1] for row in rows)


def test_the_word_replicated_is_not_in_reach() -> None:
    verdicts = {agreement.CONSISTENT, agreement.NOT_CONSISTENT, agreement.INCONCLUSIVE, agreement.INVALID}
    assert not any("REPLICATED" in word for word in verdicts)
    assert "no replication" in judgement.NOTE


# -- the order of runs --------------------------------------------------------------------------------------


def test_the_order_follows_from_root_and_nonce_alone() -> None:
    root = "ab" * 32
    first = schedule.runs(root, bytes(32), 6, ["b", "a", "d", "c"])
    assert first == schedule.runs(root, bytes(32), 6, ["a", "b", "c", "d"])
    assert [block for block, _ in first] == [b for b in range(6) for _ in range(4)]
    assert all(sorted(arm for b, arm in first if b == block) == ["a", "b", "c", "d"] for block in range(6))
    assert first != schedule.runs(root, bytes(31) + b"\1", 6, ["a", "b", "c", "d"])
    assert first != schedule.runs("cd" * 32, bytes(32), 6, ["a", "b", "c", "d"])


def test_every_arm_comes_first_about_equally_often() -> None:
    counts: dict[str, int] = {}
    for number in range(2000):
        first = schedule.order(schedule.seed("ab" * 32, number.to_bytes(32, "big")), 0, "abcd")[0]
        counts[first] = counts.get(first, 0) + 1
    assert all(430 < count < 570 for count in counts.values())
