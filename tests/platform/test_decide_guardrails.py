"""Guardrails: what is proven, what is not, and that absence of evidence is never a pass."""

from __future__ import annotations

import math
from typing import Any

import pytest

from counterproof.decide.guardrails import HARM, PASS, UNPROVEN, judge_guardrails
from counterproof.measure.effects import effect

TIGHT = [0.001, -0.002, 0.002, -0.001, 0.0015, -0.0005]


def entry(base: list[float | None], other: list[float | None], **fields: Any) -> dict[str, Any]:
    made = {
        "metric": "ttft_ms",
        "statistic": "p50",
        "unit": "ms",
        "arms": {
            "baseline": {"per_block": base, "reason": "a run was lost" if None in base else ""},
            "candidate": {"per_block": other, "reason": "a run was lost" if None in other else ""},
        },
        "effects": {"candidate": effect(base, other, "a run was lost")},
        "a_a": {"passed": True, "detail": "fine"},
    }
    return {**made, **fields}


def rail(**fields: Any) -> dict[str, Any]:
    made = {"metric": "ttft_ms", "statistic": "p50", "kind": "sampled", "margin": 0.03, "better": "lower"}
    return {**made, **fields}


def judge(found: dict[str, Any] | None, *rails: dict[str, Any], **comparison: Any) -> list[dict[str, Any]]:
    plan = {"primary": {"metric": "tpot_ms", "statistic": "p50"}, "guardrails": list(rails)}
    metrics = {} if found is None else {found["metric"]: found}
    made = {"metrics": metrics, "valid": True, "equivalence": {"equal": True}, "divergence": {}, **comparison}
    return judge_guardrails(plan, made)


def scaled(d: list[float]) -> list[float | None]:
    return [100.0 * math.exp(v) for v in d]


def test_inside_the_margin_passes_and_beyond_it_harms() -> None:
    base: list[float | None] = [100.0] * 6
    (same,) = judge(entry(base, scaled(TIGHT)), rail())
    assert (same["status"], same["n"]) == (PASS, 6)
    assert same["upper_bound"] < 0.03
    (worse,) = judge(entry(base, scaled([v + 0.10 for v in TIGHT])), rail())
    assert worse["status"] == HARM
    assert "worse" in worse["reason"]


def test_higher_is_better_turns_the_direction() -> None:
    base: list[float | None] = [100.0] * 6
    up = rail(better="higher", kind="rate")
    assert judge(entry(base, scaled([v + 0.5 for v in TIGHT])), up)[0]["status"] == PASS
    assert judge(entry(base, scaled([v - 0.5 for v in TIGHT])), up)[0]["status"] == HARM


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "not compared"),
        (entry([], []), "no complete block"),
        (entry([100.0] * 5, [100.0, 101, 100, 99, 100]), "needs 6 blocks, has 5"),
        (entry([100.0], [50.0]), "needs 6 blocks, has 1"),
        (entry([100.0] * 6, [100.0] * 5 + [None]), "a run was lost"),
        (entry([None] * 6, [None] * 6), "a run was lost"),
        (entry([100.0] * 6, [100.0] * 6), "exactly the same values"),
        (entry([0.0] * 6, [0.0] * 6), "a ratio with 0"),
        (entry([100.0] * 6, [math.nan] * 6), ""),
        (entry([100.0] * 6, [120.0, 80, 121, 79, 119, 81]), "would resolve it"),
        (entry([100.0] * 6, scaled(TIGHT), a_a={"passed": False, "detail": "broken"}), "A/A"),
        (entry([100.0] * 6, scaled(TIGHT), a_a={"passed": None, "detail": "none"}), "A/A"),
    ],
)
def test_what_is_not_proven_never_passes(found: dict[str, Any] | None, words: str) -> None:
    (judged,) = judge(found, rail())
    assert judged["status"] == UNPROVEN
    assert words in judged["reason"]
    assert judged["reason"]


def test_invalid_evidence_passes_nothing() -> None:
    (judged,) = judge(entry([100.0] * 6, scaled(TIGHT)), rail(), valid=False)
    assert judged["status"] == UNPROVEN
    assert judged["reason"].startswith("the evidence is invalid")


def test_harm_is_corrected_over_the_guardrails() -> None:
    base: list[float | None] = [100.0] * 6
    shaky = scaled([0.03 + v for v in (-0.008, 0.03, 0.02, 0.0, 0.008, 0.03)])
    found = entry(base, shaky)
    (alone,) = judge(found, rail())
    assert alone["status"] == HARM
    assert 0.01 < alone["p_harm"] < 0.05
    others = [rail(metric="throughput_tok_s", statistic="total", kind="rate", better="higher")]
    good = entry(base, scaled([v + 0.5 for v in TIGHT]), metric="throughput_tok_s", statistic="total")
    plan = {"primary": {"metric": "tpot_ms", "statistic": "p50"}, "guardrails": [rail(), *others, *others]}
    comparison = {
        "metrics": {"ttft_ms": found, "throughput_tok_s": good},
        "valid": True,
        "equivalence": {},
        "divergence": {},
    }
    judged = judge_guardrails(plan, comparison)
    assert judged[0]["p_harm_holm"] == pytest.approx(3 * alone["p_harm"])
    assert judged[0]["status"] == UNPROVEN


def exact(metric: str, base: list[float | None], other: list[float | None], **fields: Any) -> dict[str, Any]:
    statistic = {"weight_bytes": "total", "error_rate": "mean", "kv_bytes_peak": "peak"}[metric]
    found = entry(base, other, metric=metric, statistic=statistic)
    return judge(found, rail(metric=metric, statistic=statistic, kind="exact", **fields))[0]


def test_exact_counts() -> None:
    assert exact("weight_bytes", [100.0] * 6, [102.0] * 6, margin=0.02)["status"] == PASS
    assert exact("weight_bytes", [100.0] * 6, [102.1] * 6, margin=0.02)["status"] == HARM
    assert exact("weight_bytes", [100.0] * 6, [100.0] * 5 + [103.0], margin=0.02)["status"] == HARM
    assert exact("weight_bytes", [None] * 6, [None] * 6, margin=0.02)["status"] == UNPROVEN
    assert exact("weight_bytes", [], [], margin=0.02)["status"] == UNPROVEN
    assert exact("error_rate", [0.0] * 6, [0.0] * 6, margin=0.001)["status"] == PASS
    assert exact("error_rate", [0.0] * 6, [0.0] * 5 + [1 / 11], margin=0.001)["status"] == HARM


def test_a_price_registered_beforehand_is_the_limit() -> None:
    price = {"predicted_bytes": 1000, "reason": "the cache's own bytes"}
    kv = {"margin": 0.02, "registered": price}
    assert exact("kv_bytes_peak", [0.0] * 6, [1020.0] * 6, **kv)["status"] == PASS
    assert exact("kv_bytes_peak", [0.0] * 6, [1021.0] * 6, **kv)["status"] == HARM
    unregistered = exact("kv_bytes_peak", [0.0] * 6, [1.0] * 6, margin=0.02)
    assert unregistered["status"] == HARM
    assert "no price was registered" in unregistered["reason"]


@pytest.mark.parametrize(
    ("equal", "divergence", "status"),
    [
        (True, {"compared": 9, "identical": 8, "harmless": 1, "wrong": 0}, PASS),
        (True, {"compared": 9, "identical": 8, "harmless": 0, "wrong": 1}, HARM),
        (False, {"compared": 9, "identical": 9, "harmless": 0, "wrong": 0}, HARM),
        (None, {"compared": 9, "identical": 9, "harmless": 0, "wrong": 0}, UNPROVEN),
        (True, {"compared": 0, "identical": 0, "harmless": 0, "wrong": 0}, UNPROVEN),
        (True, None, UNPROVEN),
    ],
)
def test_outputs(equal: bool | None, divergence: dict[str, int] | None, status: str) -> None:
    equivalence = {"equal": equal, "reason": "why", "requests": 4}
    found = {} if divergence is None else {"candidate": divergence}
    outputs = rail(metric="outputs", statistic="identical", kind="exact", margin=0.0, better="equal")
    (judged,) = judge(None, outputs, equivalence=equivalence, divergence=found)
    assert judged["status"] == status
