"""The verdict rule, branch by branch, and its error rates over simulated reviews with their validity gates."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from counterproof_review.verdict import rule as verdicts
from counterproof_review.verdict.rule import Evidence, Rule, judge

RULE = Rule(sesoi=0.03)
STEP = [0.01, -0.01, 0.005, -0.005, 0.008, -0.008, 0.002, -0.002]
SALT = [0.2 + s for s in STEP]


def around(center: float, n: int = 8, scale: float = 1.0) -> list[float]:
    return [center + scale * s for s in STEP[:n]]


def evidence(**changes: object) -> Evidence:
    base = Evidence(
        author=around(math.log(1.10)),
        replay=around(math.log(1.10)),
        again=STEP,
        salt=SALT,
        salt_expected=[0.2] * 8,
        lengths=[1.0, 1.0, 1.0],
        outputs_equal=True,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, "REPLICATED", "inside the band"),
        ({"opened": False}, "UNADJUDICABLE", "can open"),
        ({"faults": ("FREEZE was edited after REVEAL",)}, "INVALID", "FREEZE"),
        ({"arms_differ": False}, "INVALID", "same work"),
        ({"lengths": [1.0, 0.8, 1.0]}, "INVALID", "20.0 %"),
        ({"again": [0.08 + s for s in STEP]}, "INVALID", "A/A"),
        ({"again": [12 * s for s in STEP]}, "INVALID", "A/A"),
        ({"salt_expected": None}, "INVALID", "not disclosed"),
        ({"salt": STEP}, "INVALID", "cannot be told from nothing"),
        ({"salt_expected": [0.4] * 8}, "INVALID", "measured wrongly"),
        ({"replay": [*around(0.1)[:7], math.inf]}, "INVALID", "no value"),
        ({"again": STEP[:7]}, "INVALID", "not every arm"),
        ({"same_hardware": False, "same_regime": False}, "NOT_COMPARABLE", "another bottleneck"),
        ({"outputs_equal": False}, "NOT_REPLICATED", "outputs differ"),
        ({"counterexamples": 1}, "NOT_REPLICATED", "1 counterexample inside"),
        ({"replay": around(0.0)}, "NOT_REPLICATED", "less than the smallest"),
        ({"replay": around(-0.1)}, "NOT_REPLICATED", "a loss"),
        ({"author": around(0.1, 3)}, "INCONCLUSIVE", "3 blocks on one side"),
        ({"replay": [0.1] * 7 + [-0.3]}, "INCONCLUSIVE", "stalled in block 7"),
        ({"replay": around(math.log(1.03), scale=3)}, "INCONCLUSIVE", "smallest of interest"),
        ({"author": around(0.4)}, "REPLICATED_SMALLER", "too large"),
        ({"author": around(0.03)}, "INCONCLUSIVE", "more than was claimed"),
        ({"author": around(0.15, scale=1.0)}, "CONSISTENT_IMPRECISE", "add blocks"),
        ({"same_hardware": False, "author": around(0.2)}, "REPLICATED", "class of hardware alone"),
        ({"same_hardware": False, "author": around(0.9)}, "REPLICATED_SMALLER", "between machines"),
    ],
)
def test_every_branch(changes: dict[str, object], verdict: str, reason: str) -> None:
    found = judge(evidence(**changes), RULE)
    assert (found.verdict, reason in found.reason) == (verdict, True), found
    assert found.grows is (verdict == "REPLICATED")


def test_an_extension_lifts_the_hold_of_a_stall() -> None:
    stalled = [0.10, 0.11, 0.09, 0.1, 0.1, 0.11, 0.09, -0.03]
    held = evidence(replay=stalled, again=[s / 2 for s in STEP])
    assert judge(held, RULE).verdict == "INCONCLUSIVE"
    found = judge(dataclasses.replace(held, extended=True), RULE)
    assert "stalled" not in found.reason


def test_too_few_blocks_of_the_reviewer_decide_nothing() -> None:
    few = evidence(replay=around(0.0, 5), again=STEP[:5], salt=SALT[:5], salt_expected=[0.2] * 5)
    assert judge(few, RULE).verdict == "INCONCLUSIVE"


def test_rare_stall_bound_is_printed_on_every_verdict() -> None:
    assert judge(evidence(), RULE).stall_bound == pytest.approx(1 - 0.05 ** (1 / 8))
    assert judge(evidence(opened=False), RULE).stall_bound == pytest.approx(0.3123, abs=1e-4)
    assert verdicts.no_review().grows is False


def rates(author: float, replay: float, noise: float, blocks: int, seeds: int = 2000) -> Counter[str]:
    """Verdicts of `seeds` reviews. A block's ratio has standard deviation `noise`; the arms share their baseline."""
    found: Counter[str] = Counter()
    single = noise / math.sqrt(2)
    for seed in range(seeds):
        rng = np.random.default_rng([seed, blocks, int(1e6 * noise)])
        theirs = author + noise * rng.standard_normal(blocks)
        runs = single * rng.standard_normal((4, blocks))
        delay = math.log1p(0.25)
        case = Evidence(
            author=theirs.tolist(),
            replay=(replay + runs[1] - runs[0]).tolist(),
            again=(runs[2] - runs[0]).tolist(),
            salt=(delay + runs[3] - runs[0]).tolist(),
            salt_expected=[delay] * blocks,
            outputs_equal=True,
        )
        found[judge(case, RULE).verdict] += 1
    return found


def test_truth_at_the_smallest_effect_passes_at_most_seven_percent() -> None:
    edge = math.log(1.03)
    assert rates(edge, edge, 0.02, 8)["REPLICATED"] <= 0.07 * 2000
    assert rates(math.log(1.06), edge, 0.02, 8)["REPLICATED"] <= 0.07 * 2000


def test_a_true_ten_percent_passes() -> None:
    truth = math.log(1.10)
    found = rates(truth, truth, 0.02, 8)
    assert found["REPLICATED"] >= 0.9 * 2000
    assert found["NOT_REPLICATED"] == 0


def test_no_effect_never_passes() -> None:
    for claimed in (0.0, math.log(1.05), math.log(1.10)):
        found = rates(claimed, 0.0, 0.02, 8)
        assert found["REPLICATED"] == 0
    assert found["NOT_REPLICATED"] >= 0.9 * 2000


def test_imprecise_original_never_passes() -> None:
    """imprecise_original: three blocks of the author, however large their effect."""
    rng = np.random.default_rng(4)
    for _ in range(300):
        theirs = (0.1 + 0.1 * rng.standard_normal(3)).tolist()
        assert judge(evidence(author=theirs), RULE).verdict == "INCONCLUSIVE"
