"""Outputs that part at near ties: forgiven to a lossless change in fast mode alone, by the author's own rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from counterproof.measure.divergence import diverge
from counterproof_review.packet import outputs
from counterproof_review.protocol import evidence
from counterproof_review.verdict import rule
from counterproof_review.verdict.rule import Evidence, Rule

BASE, CAND, AGAIN, SLOW = "aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd"
NAMES = {"baseline": BASE, "candidate": CAND, "again": AGAIN, "slowed": SLOW}
OPENED = {"arms": NAMES, "factor": {"lossless": True}}
THRESHOLD = 0.05


def run(arm: str, *texts: list[int], margin: float = 1.0, status: str = "ok", block: int = 0) -> Any:
    """A run with these output tokens, at which the best token led by `margin`."""
    columns = ["request_index", "token_index", "token_id", "margin"]
    rows = [(r, i, t, margin) for r, ids in enumerate(texts) for i, t in enumerate(ids)]
    requests = pd.DataFrame(
        {"request_index": range(len(texts)), "status": status, "output_sha256": [str(ids) for ids in texts]}
    )
    return SimpleNamespace(
        arm=arm, block=block, tokens=pd.DataFrame(rows, columns=columns), requests=requests
    )


def end(*blocks: list[Any], rounding: Mapping[str, Any] | None = None, failed: int = 0) -> dict[str, Any]:
    """A body of END, made from runs as an attempt makes it."""
    seen = outputs.against_others([one for block in blocks for one in block])
    runs = [
        {
            "arm": one.arm,
            "block": one.block,
            "failed_requests": failed,
            "outputs_sha256": str(list(one.requests["output_sha256"])),
            "against": seen[one.block, one.arm],
        }
        for block in blocks
        for one in block
    ]
    return {"runs": runs, "rounding": dict(rounding or {})}


def report(mode: str) -> Any:
    return SimpleNamespace(arms={name: {"numerics.mode": mode} for name in NAMES.values()})


def moved(threshold: float | None, candidate_bits: str | None = "same") -> dict[str, Any]:
    def said(bits: str | None) -> dict[str, Any]:
        return {"threshold": threshold, "invariant_sha256": bits, "reason": ""}

    return {BASE: said("same"), CAND: said(candidate_bits)}


def block(margin: float, number: int = 0, **candidate: Any) -> list[Any]:
    """Baseline, its two doubles, and a candidate whose second request parts at its second token."""
    same = [run(arm, [1, 2, 3], [4, 5, 6], margin=margin, block=number) for arm in (BASE, AGAIN, SLOW)]
    return [*same, run(CAND, [1, 2, 3], [4, 9, 9], block=number, **candidate)]


def judged(mode: str, *ends: dict[str, Any]) -> bool | None:
    return evidence.outputs_equal(report(mode), ends, OPENED)


def test_a_near_tie_passes_in_fast_mode_and_fails_in_invariant_mode() -> None:
    found = end(block(0.01), block(0.02, 1), rounding=moved(THRESHOLD))
    assert judged("fast", found) is True
    assert judged("invariant", found) is False


@pytest.mark.parametrize("mode", ["fast", "invariant"])
def test_a_harmful_difference_fails_in_either_mode(mode: str) -> None:
    assert judged(mode, end(block(0.01), block(0.4, 1), rounding=moved(THRESHOLD))) is False
    assert judged(mode, end(block(THRESHOLD), rounding=moved(THRESHOLD))) is False


@pytest.mark.parametrize("mode", ["fast", "invariant"])
def test_the_very_same_outputs_pass_in_either_mode(mode: str) -> None:
    same = [run(arm, [1, 2], [3]) for arm in NAMES.values()]
    assert judged(mode, end(same)) is True


@pytest.mark.parametrize(
    "found",
    [
        end(block(0.01)),
        end(block(0.01), rounding=moved(None)),
        end(block(0.01), rounding={CAND: moved(THRESHOLD)[CAND]}),
        end(block(0.01), rounding=moved(0.0)),
        end(block(math.nan), rounding=moved(THRESHOLD)),
        end(block(0.01), rounding=moved(THRESHOLD, "other bits in invariant mode")),
        end(block(0.01), rounding=moved(THRESHOLD), failed=1),
        end(block(0.01, status="error"), rounding=moved(THRESHOLD)),
    ],
    ids=[
        "no phase",
        "no threshold",
        "none of the baseline",
        "no rounding",
        "no margin",
        "bits",
        "failed",
        "not ok",
    ],
)
def test_what_is_not_known_is_not_forgiven(found: dict[str, Any]) -> None:
    assert judged("fast", found) is False


def test_an_attempt_from_before_this_was_recorded_is_not_forgiven() -> None:
    found = end(block(0.01), rounding=moved(THRESHOLD))
    old = [{key: value for key, value in one.items() if key != "against"} for one in found["runs"]]
    assert judged("fast", {"runs": old}) is False


def test_a_later_attempt_that_measured_rounding_speaks_for_one_that_was_cut_off() -> None:
    whole, cut_off = end(block(0.01), rounding=moved(THRESHOLD)), end(block(0.02))
    assert judged("fast", cut_off, whole) is True
    assert judged("fast", end(block(0.3)), whole) is False


def test_a_change_that_may_move_outputs_is_not_held_to_them() -> None:
    found = end(block(0.4), rounding=moved(THRESHOLD))
    assert evidence.outputs_equal(report("fast"), [found], {**OPENED, "factor": {"lossless": False}}) is None
    assert evidence.outputs_equal(report("fast"), [], OPENED) is None


@pytest.mark.parametrize("margin", [0.0, 0.01, 0.0499, 0.05, 0.051, 3.0, math.nan])
@pytest.mark.parametrize("threshold", [None, 0.0, 0.05, 1.0])
def test_reviewer_and_author_judge_the_same_runs_alike(margin: float, threshold: float | None) -> None:
    runs = block(margin)
    by_arm = {one.arm: one for one in runs}
    theirs = diverge([by_arm[BASE]], [by_arm[CAND]], threshold)
    assert (theirs.compared, theirs.identical) == (2, 1)
    assert judged("fast", end(runs, rounding=moved(threshold))) is (theirs.wrong == 0)


def test_blocks_are_counted_by_what_their_outputs_are() -> None:
    same = [run(arm, [1, 2], [3], block=2) for arm in NAMES.values()]
    found = end(block(0.01), block(0.4, 1), same, rounding=moved(THRESHOLD))
    counts = evidence.output_counts(report("fast"), [found], OPENED)
    assert counts == {"identical": 1, "near_ties": 1, "wrong": 1}
    strict = evidence.output_counts(report("invariant"), [found], OPENED)
    assert strict == {"identical": 1, "near_ties": 0, "wrong": 2}


def test_only_the_arms_that_part_are_noted() -> None:
    seen = outputs.against_others(block(0.01))
    assert set(seen[0, CAND]) == {BASE, AGAIN, SLOW}
    assert seen[0, BASE] == {CAND: {"compared": 2, "identical": 1, "margin": 0.01}}
    assert seen[0, SLOW] == seen[0, BASE] and set(seen[0, AGAIN]) == {CAND}


def test_what_the_verdict_makes_of_it() -> None:
    gains = [0.50, 0.51, 0.49, 0.50, 0.52, 0.48]
    salt = [0.2 + 0.001 * i for i in range(6)]
    noise = [0.001, -0.001, 0.002, -0.002, 0.001, -0.001]

    def verdict(equal: bool | None) -> str:
        return rule.judge(
            Evidence(gains, gains, noise, salt, salt, outputs_equal=equal), Rule(sesoi=0.05)
        ).verdict

    near = end(block(0.01), rounding=moved(THRESHOLD))
    assert verdict(judged("fast", near)) == rule.REPLICATED
    assert verdict(judged("invariant", near)) == rule.NOT_REPLICATED
