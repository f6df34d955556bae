"""The decision rule: every rule of it, first match wins, and no way to PROMOTE but the whole way."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof.decide.rule import decide
from counterproof.measure.compare import compare
from counterproof.measure.load import load_study
from counterproof.record import canonical

SMALL: dict[str, Any] = {"new_tokens": 6, "prompt_tokens": 16}
FULL: dict[str, Any] = {
    "now_utc": "2026-03-01T00:00:00Z",
    "replication": {"verdict": "REPLICATED"},
    "counterexamples": {"open": 0},
    "drill": {"passed": True, "age_days": 3, "seconds": 12.0},
}
Judged = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def good(synthetic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Plan and comparison of a study in which everything is proven."""
    model = synthetic.StudyModel(run_sd=0.004, step_sd=0.01, **SMALL)
    study = load_study(synthetic.build(tmp_path_factory.mktemp("decide"), model))
    return study.plan, compare(study)


@pytest.fixture
def case(good: Judged) -> Judged:
    """A copy to spoil."""
    return copy.deepcopy(good)


def test_without_a_replication_the_best_is_hold(good: Judged) -> None:
    found = decide(*good)
    assert found["decision"] == "HOLD"
    assert found["fired"] == "6 hold"
    assert {g["metric"]: g["status"] for g in found["guardrails"]} == dict.fromkeys(
        ("outputs", "error_rate", "kv_bytes_peak", "throughput_tok_s", "ttft_ms", "startup_ms"), "PASS"
    )
    assert found["primary"]["verdict"] == "gain"
    assert found["primary"]["above_sesoi"] is True
    assert "nobody else has replicated it" in found["because"]
    assert found["scope"]["granted"] is False


def test_everything_proven_and_replicated_promotes_to_the_scope_run(good: Judged) -> None:
    found = decide(*good, FULL)
    assert found["decision"] == "PROMOTE"
    assert found["scope"] == good[1]["scope"]
    assert found["expires_utc"] == "2026-03-31T00:00:00Z"


@pytest.mark.parametrize("left_out", [("replication",), ("counterexamples",), ("drill",), tuple(FULL)])
def test_whatever_is_absent_prevents_promotion(good: Judged, left_out: tuple[str, ...]) -> None:
    context = {k: v for k, v in FULL.items() if k not in left_out}
    assert decide(*good, context)["decision"] == "HOLD"


@pytest.mark.parametrize(
    "spoiled",
    [
        {"replication": {"verdict": "REPLICATED_SMALLER"}},
        {"replication": {"verdict": "INCONCLUSIVE"}},
        {"replication": {"verdict": None}},
        {"replication": {}},
        {"replication": None},
        {"counterexamples": {"open": 1}},
        {"counterexamples": {"open": None}},
        {"drill": {"passed": True, "age_days": 15}},
        {"drill": {"passed": True, "age_days": None}},
        {"drill": {"passed": False, "age_days": 1}},
        {"drill": {"passed": "yes", "age_days": 1}},
    ],
)
def test_a_condition_that_is_not_met_prevents_promotion(good: Judged, spoiled: dict[str, Any]) -> None:
    assert decide(*good, {**FULL, **spoiled})["decision"] == "HOLD"


@pytest.mark.parametrize("flag", ["exploratory", "calibration"])
def test_exploratory_and_calibration_never_promote(case: Judged, flag: str) -> None:
    plan, comparison = case
    plan[flag] = True
    assert decide(plan, comparison, FULL)["decision"] == "HOLD"
    del plan[flag]
    assert decide(plan, comparison, FULL)["decision"] == "HOLD"


def spoil_invalid(plan: dict[str, Any], comparison: dict[str, Any]) -> None:
    comparison["valid"] = False
    comparison["validity"][0].update(passed=False, detail="a run is missing")


def spoil_wrong_output(plan: dict[str, Any], comparison: dict[str, Any]) -> None:
    comparison["hard_limits"][-1].update(broken=True, detail="2 outputs differ")


def spoil_harm(plan: dict[str, Any], comparison: dict[str, Any]) -> None:
    effect = comparison["metrics"]["ttft_ms"]["effects"]["candidate"]
    effect["d"] = [0.20, 0.21, 0.19, 0.20, 0.22, 0.18]


def spoil_unfinished(plan: dict[str, Any], comparison: dict[str, Any]) -> None:
    comparison["final"] = False
    comparison["blocks"] = comparison["blocks"][:-1]


SPOILERS = {
    "1 evidence invalid": (spoil_invalid, "HOLD"),
    "2 hard limit": (spoil_wrong_output, "ROLLBACK"),
    "3 harm": (spoil_harm, "ROLLBACK"),
    "5 blocks left": (spoil_unfinished, "CONTINUE"),
}


@pytest.mark.parametrize("rule", SPOILERS)
def test_each_rule_fires_alone(case: Judged, rule: str) -> None:
    spoil, decision = SPOILERS[rule]
    spoil(*case)
    found = decide(*case, FULL)
    assert (found["fired"], found["decision"]) == (rule, decision)


@pytest.mark.parametrize("pair", itertools.combinations(SPOILERS, 2))
def test_the_first_match_wins(case: Judged, pair: tuple[str, str]) -> None:
    for rule in pair:
        SPOILERS[rule][0](*case)
    found = decide(*case, FULL)
    first = min(pair)
    if pair == ("3 harm", "5 blocks left"):
        # Before the last block bounds do not apply; only the sequential test can show harm.
        assert found["decision"] == "CONTINUE"
        return
    assert (found["fired"], found["decision"]) == (first, SPOILERS[first][1])


def test_invalid_while_serving_rolls_back(case: Judged) -> None:
    spoil_invalid(*case)
    assert decide(*case, {**FULL, "serving": True})["decision"] == "ROLLBACK"


def test_sequential_harm_stops_a_study_under_way(case: Judged) -> None:
    plan, comparison = case
    comparison["final"], comparison["blocks_planned"] = False, 20
    comparison["metrics"]["ttft_ms"]["effects"]["candidate"]["d"] = [0.2] * 9  # three guardrails: 20 x 3
    found = decide(plan, comparison, FULL)
    assert (found["fired"], found["decision"]) == ("3 harm", "ROLLBACK")
    comparison["metrics"]["ttft_ms"]["effects"]["candidate"]["d"] = [0.2] * 6
    assert decide(plan, comparison, FULL)["decision"] == "CONTINUE"


def test_no_guardrails_means_no_promotion(case: Judged) -> None:
    plan, comparison = case
    plan["guardrails"] = []
    assert decide(plan, comparison, FULL)["decision"] == "HOLD"


def test_no_validity_checks_means_invalid(case: Judged) -> None:
    plan, comparison = case
    comparison["validity"] = []
    found = decide(plan, comparison, FULL)
    assert (found["fired"], found["decision"]) == ("1 evidence invalid", "HOLD")


@pytest.mark.parametrize("verdict", ["no claim", "loss", "not measured"])
def test_no_gain_no_promotion(case: Judged, verdict: str) -> None:
    plan, comparison = case
    comparison["metrics"]["tpot_ms"]["verdict"] = verdict
    assert decide(plan, comparison, FULL)["decision"] == "HOLD"


def test_a_gain_below_the_smallest_effect_of_interest_is_held(case: Judged) -> None:
    plan, comparison = case
    plan["primary"]["sesoi"] = 0.999
    found = decide(plan, comparison, FULL)
    assert found["decision"] == "HOLD"
    assert "smallest effect of interest" in found["because"]


def test_a_metric_that_is_missing_altogether(case: Judged) -> None:
    plan, comparison = case
    del comparison["metrics"]["tpot_ms"]
    del comparison["metrics"]["ttft_ms"]
    found = decide(plan, comparison, FULL)
    assert found["decision"] == "HOLD"
    assert found["primary"]["verdict"] == "not measured"


def test_the_trace_says_what_every_rule_saw(good: Judged) -> None:
    found = decide(*good)
    assert [step["rule"][0] for step in found["trace"]] == ["1", "2", "3", "4", "5", "6"]
    promote = found["trace"][3]["inputs"]
    assert promote["replicated"] is False
    assert promote["guardrails_registered_and_passed"] is True
    assert found["trace"][1]["inputs"] == {"out_of_memory": False, "crash_loop": False, "wrong_output": False}


def test_the_three_questions_are_answered(good: Judged) -> None:
    answers = decide(*good, FULL)["answers"]
    gain = answers["gain_from"]
    assert (gain["resolved"], gain["stage"], gain["phase"]) == (True, "compute", "decode")
    assert 0.9 < gain["share"] < 1.1
    cost = answers["cost_went"]
    assert {(c["stage"], c["resource"]) for c in cost["cells"]} >= {("state", "memory")}
    assert cost["not_measured"]
    back = answers["stop_and_rollback"]
    assert back["configuration"] == [{"path": "engine.kv_cache.enabled", "from": True, "to": False}]
    assert back["command"] == "counterproof rollback kv_cache"
    assert "kv_cache.enabled=false" in back["by_hand"]
    assert back["drill_command"] == f"counterproof drill {good[0]['study']}"
    assert len(back["triggers"]) == len(good[0]["guardrails"])
    assert all(t["condition"] and t["window"] and t["action"] for t in back["triggers"])
    assert back["reversal"] and back["expires_utc"]


def test_costs_without_intervals_are_not_called_absent(build_study: Callable[..., Path]) -> None:
    study = load_study(build_study(blocks=2, **SMALL))
    cost = decide(study.plan, compare(study))["answers"]["cost_went"]
    assert [(c["stage"], c["resource"]) for c in cost["cells"]] == [("state", "memory")]  # an exact count
    assert "could not be told from noise: too few blocks" in cost["text"]


def test_a_decision_is_plain_data_and_the_same_every_time(good: Judged) -> None:
    assert canonical.dumps(decide(*good, FULL)) == canonical.dumps(decide(*good, FULL))


@pytest.mark.parametrize(
    ("fields", "fired", "decision"),
    [
        ({"identical_arms": True}, "1 evidence invalid", "HOLD"),
        ({"all_fail": True}, "1 evidence invalid", "HOLD"),
        ({"nan_arm": "candidate"}, "1 evidence invalid", "HOLD"),
        ({"kept_tokens": 0.5}, "1 evidence invalid", "HOLD"),
        ({"blocks": 1}, "1 evidence invalid", "HOLD"),
        ({"wrong_requests": 1}, "2 hard limit", "ROLLBACK"),
        ({"equivalence_differs": True}, "2 hard limit", "ROLLBACK"),
        ({"blocks": 1, "crashed": ((0, "candidate"),)}, "2 hard limit", "ROLLBACK"),
        ({"blocks": 1, "crashed": ((0, "baseline"),)}, "5 blocks left", "CONTINUE"),
        (
            {"blocks": 1, "crashed": ((0, "candidate"),), "crash_reason": "CUDA out of memory"},
            "2 hard limit",
            "ROLLBACK",
        ),
        ({"prefill_ratio": 1.5}, "3 harm", "ROLLBACK"),
        ({"decode_ratio": 1.0}, "6 hold", "HOLD"),
        ({"missing": ((5, "again"),)}, "5 blocks left", "CONTINUE"),
        ({"calibration": True}, "6 hold", "HOLD"),
    ],
)
def test_whole_studies(
    build_study: Callable[..., Path], fields: dict[str, Any], fired: str, decision: str
) -> None:
    study = load_study(build_study(**{**SMALL, **fields}))
    found = decide(study.plan, compare(study), FULL)
    assert (found["fired"], found["decision"]) == (fired, decision), found["because"]


def _first(blocks: int, planned: int) -> dict[str, Any]:
    """A study of `planned` blocks of which only the first ones were run."""
    arms = ("baseline", "candidate", "again", "slowed")
    return {"blocks": planned, "missing": tuple((b, arm) for b in range(blocks, planned) for arm in arms)}


@pytest.mark.parametrize(
    ("fields", "decision", "futile"),
    [
        ({**_first(7, 12), "decode_ratio": 1.0}, "HOLD", True),
        ({**_first(7, 12), "decode_ratio": 0.5}, "CONTINUE", False),
        ({**_first(6, 13), "decode_ratio": 1.0}, "CONTINUE", False),  # before half of the blocks
        ({**_first(7, 12), "decode_ratio": 1.0, "run_sd": 0.15}, None, False),  # too noisy to call it futile
    ],
)
def test_futile_blocks_are_not_run(
    build_study: Callable[..., Path], fields: dict[str, Any], decision: str | None, futile: bool
) -> None:
    study = load_study(build_study(**{**SMALL, **fields}))
    found = decide(study.plan, compare(study))
    step = found["trace"][4]
    assert step["inputs"]["futile"] is futile
    if decision is not None:
        assert (found["fired"], found["decision"]) == ("5 blocks left", decision), found["because"]
    assert ("futile" in step["because"]) is futile


@pytest.mark.parametrize(("imprecise", "futile"), [(True, False), (False, True)])
def test_blocks_that_a_a_needs_are_not_futile(
    build_study: Callable[..., Path], imprecise: bool, futile: bool
) -> None:
    study = load_study(build_study(**{**SMALL, **_first(7, 12), "decode_ratio": 1.0}))
    seen = compare(study)
    wide = {"check": "a_a", "passed": False, "detail": "leaves the band", "imprecise": imprecise}
    seen["validity"] = [wide if check["check"] == "a_a" else check for check in seen["validity"]]
    step = decide(study.plan, seen)["trace"][4]
    assert step["inputs"]["futile"] is futile
    assert ("A/A needs them" in step["because"]) is imprecise
