"""Each way in which evidence can be unfit, one synthetic study each: never a pass, always a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof.measure.compare import compare
from counterproof.measure.load import load_study

SMALL: dict[str, Any] = {"new_tokens": 6, "prompt_tokens": 16, "equivalence": True}
Build = Callable[..., Path]


def checks(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    found = compare(load_study(folder))
    return found, {c["check"]: c for c in found["validity"]}


@pytest.mark.parametrize(
    ("fields", "check", "words"),
    [
        ({"identical_arms": True}, "arms_differ", "the flag did nothing"),
        ({"again_ratio": 1.2}, "a_a", "A"),
        ({"run_sd": 0.2}, "a_a", "leaves the band"),
        ({"delivered_delay_us": 0}, "slowed_recovered", "cannot be told from nothing"),
        ({"delivered_delay_us": 10_000}, "slowed_recovered", "measured wrongly"),
        ({"slowed_delay_us": 0}, "slowed_recovered", "injects no delay"),
        ({"kept_tokens": 0.8}, "output_length", "candidate"),
        ({"gauge_factor": 2.0}, "littles_law", "by gauge, 1.000 by stamps"),
        ({"hidden_queue_ms": 5.0}, "client_queue", "TTFT p50"),
        ({"nan_arm": "candidate"}, "clock", "first_token_ns is missing"),
        ({"extra_effective": {"dtype": "fp32"}}, "one_variable", "effective dtype is 'fp32'"),
        ({"environment_change": {"torch": "2.12.0"}}, "one_variable", "environment torch"),
        ({"equivalence": False}, "equivalence", "no sealed equivalence run"),
        ({"missing": ((1, "again"),)}, "samples", "block 1: no sealed run of again"),
        ({"all_fail": True}, "samples", "no request succeeded"),
    ],
)
def test_unfit_evidence_is_invalid_and_claims_nothing(
    build_study: Build, fields: dict[str, Any], check: str, words: str
) -> None:
    found, verdicts = checks(build_study(**{**SMALL, **fields}))
    assert verdicts[check]["passed"] is False
    assert words in verdicts[check]["detail"]
    assert found["valid"] is False
    assert {e["verdict"] for e in found["metrics"].values()} <= {"no claim", "not measured"}


def test_identical_arms_are_judged_by_what_ran_not_by_noise(build_study: Build) -> None:
    found, verdicts = checks(build_study(identical_arms=True, **SMALL))
    assert found["diffs"]["effective"] == []
    assert "kv_cache.enabled" in verdicts["arms_differ"]["detail"]


def test_an_engine_that_only_repeats_the_flag_is_found_out(build_study: Build) -> None:
    echoed = {"kv_cache.enabled": True}
    found, verdicts = checks(build_study(identical_arms=True, extra_effective=echoed, **SMALL))
    assert verdicts["arms_differ"]["passed"] is False
    assert "no derived field, environment field or work counter differs" in verdicts["arms_differ"]["detail"]
    assert found["valid"] is False


def test_a_study_under_way_is_neither_valid_proof_nor_invalid(build_study: Build) -> None:
    left = tuple((block, arm) for block in (4, 5) for arm in ("baseline", "candidate", "again", "slowed"))
    found, verdicts = checks(build_study(missing=left, **SMALL))
    assert found["final"] is False
    assert found["blocks"] == [0, 1, 2, 3]
    assert verdicts["a_a"]["passed"] is None
    assert found["valid"] is True
    assert {e["verdict"] for e in found["metrics"].values()} <= {"no claim", "not measured"}


def test_fewer_blocks_than_an_interval_needs_is_invalid_when_done(build_study: Build) -> None:
    found, verdicts = checks(build_study(blocks=2, **SMALL))
    assert found["final"] is True
    assert verdicts["a_a"]["passed"] is False
    assert "needs 6 blocks" in verdicts["a_a"]["detail"]
    assert found["valid"] is False


def test_too_few_requests_for_the_primary_percentile_is_invalid(build_study: Build) -> None:
    found, verdicts = checks(build_study(requests=4, **SMALL))
    assert verdicts["a_a"]["passed"] is False
    assert found["metrics"]["tpot_ms"]["verdict"] == "not measured"
    assert found["valid"] is False


def test_no_block_at_all(build_study: Build) -> None:
    found, verdicts = checks(build_study(blocks=1, missing=((0, "candidate"),), **SMALL))
    assert found["blocks"] == []
    assert verdicts["samples"]["passed"] is None
    assert found["stall_probability_bound"] is None


def test_wrong_outputs_break_a_hard_limit_and_near_ties_do_not(build_study: Build) -> None:
    found, verdicts = checks(build_study(wrong_requests=2, wrong_margin=4.0, **SMALL))
    assert verdicts["outputs"]["passed"] is True  # they were compared; what it means is a limit, not validity
    assert found["divergence"]["candidate"]["wrong"] == 12
    limits = {limit["limit"]: limit["broken"] for limit in found["hard_limits"]}
    assert limits == {"out_of_memory": False, "crash_loop": False, "wrong_output": True}


def test_near_ties_are_counted_apart(build_study: Build) -> None:
    found, _ = checks(build_study(wrong_requests=2, wrong_margin=0.05, batch_logit_difference=0.05, **SMALL))
    assert found["divergence"]["candidate"]["harmless"] == 12
    assert found["divergence"]["candidate"]["wrong"] == 0
    assert not any(limit["broken"] for limit in found["hard_limits"])


def test_unequal_logits_in_invariant_mode_break_a_hard_limit(build_study: Build) -> None:
    found, _ = checks(build_study(equivalence_differs=True, **SMALL))
    assert found["equivalence"]["equal"] is False
    assert "logits differ" in found["equivalence"]["reason"]
    assert next(x for x in found["hard_limits"] if x["limit"] == "wrong_output")["broken"] is True


def test_concurrency_keeps_littles_law(build_study: Build) -> None:
    found, verdicts = checks(build_study(concurrency=3, **SMALL))
    assert verdicts["littles_law"]["passed"] is True
    assert "L 3" in verdicts["littles_law"]["detail"] or "L 2.9" in verdicts["littles_law"]["detail"]
    arms = found["memory"]["arms"]["candidate"]
    assert arms["predicted_kv_bytes"] == arms["measured_kv_bytes"]
