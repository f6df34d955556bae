"""Quality bounds of a change that may move outputs: recorded, judged by the registered margin, never by default."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from counterproof.decide.guardrails import HARM, PASS, UNPROVEN, judge_guardrails
from counterproof.measure.divergence import diverge
from counterproof.measure.equivalence import Equivalence
from counterproof.measure.quality import QUALITY, distance, quality_of, quality_value

FACTS = {
    "positions": 1100,
    "kl_mean": 0.004,
    "kl_p99": 0.05,
    "top1_agreement": 0.97,
    "max_dlogit": 0.8,
    "perplexity_ratio": 1.5,
    "first_divergence": [0, 3],
}


def event(scope: str, **facts: Any) -> dict[str, Any]:
    return {"time_ns": 1, "kind": "quality", "scope": scope, **FACTS, **facts}


def batch(value: Any) -> dict[str, Any]:
    return {"time_ns": 2, "kind": "batch_logit_difference", "max_abs": 9.0, "batching": value}


def study(*events: dict[str, Any], lossless: bool = False, baseline: float = 0.25) -> Any:
    runs = {
        "baseline": SimpleNamespace(arm="baseline", events=[batch(baseline)]),
        "candidate": SimpleNamespace(arm="candidate", events=list(events)),
    }
    return SimpleNamespace(
        plan={"factor": {"lossless": lossless}}, arms=("baseline", "candidate"), equivalence=runs
    )


def judge(quality: dict[str, Any] | None, metric: str, margin: float) -> tuple[str, str]:
    rail = {
        "metric": metric,
        "statistic": "total",
        "kind": "exact",
        "margin": margin,
        "better": QUALITY[metric].better,
    }
    plan = {"primary": {"metric": "tpot_ms", "statistic": "p50"}, "guardrails": [rail]}
    comparison = {"metrics": {}, "valid": True, "quality": quality}
    (found,) = judge_guardrails(plan, comparison)
    return found["status"], found["reason"]


@pytest.fixture
def measured() -> dict[str, Any]:
    found = quality_of(
        study(
            event("all"),
            event("held_out", perplexity_ratio=1.002),
            event("request", request_index=4),
            batch(0.0),
        )
    )
    assert found is not None
    return found


def test_what_is_recorded_is_what_is_found(measured: dict[str, Any]) -> None:
    assert measured["reason"] == ""
    assert measured["all"]["kl_mean"] == 0.004
    assert [request["request_index"] for request in measured["requests"]] == [4]
    assert measured["batching"] == {"baseline": 0.25, "candidate": 0.0}
    values = {metric: quality_value(measured, metric)[0] for metric in QUALITY}
    assert values == {
        "quality_kl_mean": 0.004,
        "quality_kl_p99": 0.05,
        "quality_top1": 0.97,
        "quality_max_dlogit": 0.8,
        "quality_ppl_ratio": 1.002,  # of held-out text, not of the baseline's own answers
        "quality_batch_dlogit": 0.0,
    }


@pytest.mark.parametrize(
    ("metric", "passing", "failing"),
    [
        ("quality_kl_mean", 0.004, 0.0039),
        ("quality_kl_p99", 0.06, 0.04),
        ("quality_top1", 0.04, 0.02),
        ("quality_max_dlogit", 0.8, 0.7),
        ("quality_ppl_ratio", 0.003, 0.001),
        ("quality_batch_dlogit", 0.0, None),
    ],
)
def test_the_margin_is_the_distance_from_perfect(
    measured: dict[str, Any], metric: str, passing: float, failing: float | None
) -> None:
    status, reason = judge(measured, metric, passing)
    assert status == PASS
    assert "registered bound" in reason
    if failing is not None:
        assert judge(measured, metric, failing)[0] == HARM


def test_a_candidate_better_than_the_baseline_has_no_distance() -> None:
    assert distance("quality_ppl_ratio", 0.9) == 0.0
    assert distance("quality_ppl_ratio", 1.1) == pytest.approx(0.1)
    assert distance("quality_top1", 0.75) == 0.25


def test_logits_that_move_with_their_company_break_a_bound_of_zero() -> None:
    moved = quality_of(study(event("all"), event("held_out"), batch(1e-9)))
    assert judge(moved, "quality_batch_dlogit", 0.0)[0] == HARM


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: quality_of(study(batch(0.0))),
        lambda: quality_of(study(event("all", kl_mean=float("nan")))),
        lambda: quality_of(study(event("all", kl_mean="0.0"))),
        lambda: quality_of(study(event("all", kl_mean=True))),
        lambda: quality_of(study(event("held_out"))),
    ],
)
def test_what_was_not_measured_is_unproven(make: Callable[[], dict[str, Any] | None]) -> None:
    status, reason = judge(make(), "quality_kl_mean", 1.0)
    assert status == UNPROVEN
    assert "record" in reason or "compare" in reason


def test_a_lossless_change_has_no_quality_part() -> None:
    assert quality_of(study(event("all"), lossless=True)) is None
    unfinished = study(event("all"))
    del unfinished.equivalence["candidate"]
    assert quality_of(unfinished) is None


def test_a_baseline_in_invariant_mode_forgives_no_near_tie() -> None:
    """Nothing but the change moves its logits, so that the smallest margin excuses no other token."""

    def run(token: int) -> Any:
        tokens = pd.DataFrame({"request_index": [0, 0], "token_id": [5, token], "margin": [1.0, 1e-7]})
        requests = pd.DataFrame({"request_index": [0], "status": ["ok"]})
        return SimpleNamespace(block=0, tokens=tokens, requests=requests)

    threshold = Equivalence(True, "", batch_logit_difference=0.0).threshold
    assert threshold == 0.0
    found = diverge([run(6)], [run(7)], threshold)
    assert (found.identical, found.harmless, found.wrong) == (0, 0, 1)
    assert diverge([run(6)], [run(6)], threshold).identical == 1
    assert diverge([run(6)], [run(7)], 1e-6).harmless == 1
