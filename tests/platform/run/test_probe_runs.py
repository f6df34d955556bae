"""Probe runs: planned, sealed and judged with every study, and each of them can overturn a result."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from counterproof.errors import InputError
from counterproof.measure.abnormal import judge_abnormal
from counterproof.measure.compare import compare
from counterproof.measure.load import load_study
from counterproof.measure.probes import judge_held_out, judge_sabotage, probe_gain
from counterproof.plan import checks
from counterproof.plan.prereg import compose_arms
from counterproof.record.store import RunKey, StudyPaths
from counterproof.record.verify import verify_study
from counterproof.run import judge, places
from counterproof.run.runner import StudyRunner

PROBES = ("study.probes=true", "study.blocks=1")
# What the blocks are taken to have shown: three times quicker.
GAIN = math.log(3)


@pytest.fixture
def play(
    new_study: Callable[..., StudyPaths],
    runner_of: Callable[[StudyPaths], StudyRunner],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., dict[str, Any]]:
    """`play(fault, *overrides)` runs a whole study with probes on the fake target and compares it."""

    def run(fault: dict[str, Any], *overrides: str) -> dict[str, Any]:
        monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps(fault))
        paths = new_study(*PROBES, *overrides)
        runner_of(paths).run_missing()
        return {"paths": paths, **judge.evaluate(paths).comparison}

    return run


def verdict(comparison: dict[str, Any], name: str) -> dict[str, Any]:
    return next(check for check in comparison["validity"] if check["check"] == name)


def test_a_gain_of_the_feature_survives_every_probe(play: Callable[..., dict[str, Any]]) -> None:
    found = play({"gain": "feature"})
    for name in ("duplicate_prompts", "abnormal_inputs", "token_invariants", "cold_cache"):
        assert verdict(found, name)["passed"] is True, verdict(found, name)
    for name in ("held_out_seed", "sabotage"):
        assert "no gain" in verdict(found, name)["detail"]  # one block has no interval
    loaded = load_study(found["paths"].folder)
    held_out, left = probe_gain(loaded, "candidate"), probe_gain(loaded, "sabotage")
    assert judge_held_out(GAIN, held_out).passed is True, held_out
    assert judge_sabotage(GAIN, left).passed is True, left
    study = verify_study(found["paths"].folder)
    probes = [run for run in study.runs if run.key.probe]
    assert [run.key.name for run in probes] == ["probe-baseline-1", "probe-candidate-1", "probe-sabotage-1"]
    assert {run.manifest["phase"] for run in probes} == {"probes"}
    # The sabotaged arm really did the baseline's work although it is configured as the candidate.
    work = {run.key.arm: run.manifest["counters"]["tokens_computed"] for run in probes}
    assert work["sabotage"] == work["baseline"] > work["candidate"]
    assert loaded.probes["sabotage"].effective["inject.sabotage"] == "kv_cache.enabled=false"
    assert len(loaded.probes["baseline"].abnormal) == 19
    assert loaded.probes["sabotage"].abnormal == []
    by_case = {entry["case"]: entry["arms"]["candidate"] for entry in found["abnormal"]}
    assert by_case["empty"]["error_type"] == "empty_prompt"
    assert by_case["burst of 10 times the load"]["answered"] == 10
    assert by_case["exactly at the limit"]["outcome"] == "cancelled"
    assert by_case["lone surrogate"]["error"] == "the target takes tokens only"
    assert by_case["same id"]["error_type"] == "duplicate_request"


def test_a_gain_that_stays_when_the_feature_is_off_is_no_evidence(
    play: Callable[..., dict[str, Any]],
) -> None:
    loaded = load_study(play({"gain": "elsewhere"})["paths"].folder)
    check = judge_sabotage(GAIN, probe_gain(loaded, "sabotage"))
    assert check.passed is False
    assert "does not come from the feature" in check.detail


def test_probes_are_judged_by_how_far_one_short_run_can_be_trusted() -> None:
    small, large = math.log(1.05), math.log(4)
    assert judge_held_out(large, math.log(1.5)).passed is False  # less than half, by more than noise
    assert judge_held_out(large, math.log(2)).passed is True
    assert judge_held_out(small, -math.log(1.1)).passed is True  # within what one run may be off
    assert judge_held_out(small, -math.log(1.5)).passed is False
    assert judge_sabotage(large, math.log(3.5)).passed is False
    assert judge_sabotage(large, math.log(0.8)).passed is True
    told = judge_sabotage(small, small)
    assert (told.passed, told.facts["not_applicable"]) == (None, True)
    for judged in (judge_held_out, judge_sabotage):
        assert judged(None, 1.0).facts["not_applicable"] is True
        assert judged(-large, 1.0).facts["not_applicable"] is True  # a loss needs no probe
        assert judged(large, None).passed is None


def test_a_hidden_cache_is_found_by_its_time_alone(play: Callable[..., dict[str, Any]]) -> None:
    found = play({"gain": "feature", "hidden_cache": "candidate"})
    assert verdict(found, "duplicate_prompts")["passed"] is False
    assert "a hidden cache" in verdict(found, "duplicate_prompts")["detail"]
    assert "probe-candidate" in verdict(found, "duplicate_prompts")["detail"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"dies_of_empty": "candidate"}, "empty: crashed (MemoryError: nobody thought of that)"),
        ({"damages": "candidate"}, "another request's answer changed"),
    ],
)
def test_a_candidate_that_is_a_worse_host_to_abnormal_inputs(
    play: Callable[..., dict[str, Any]], fault: dict[str, Any], said: str
) -> None:
    found = play({"gain": "feature", **fault})
    assert verdict(found, "abnormal_inputs")["passed"] is False
    assert said in verdict(found, "abnormal_inputs")["detail"]


def test_a_baseline_with_the_same_weakness_refutes_nothing() -> None:
    weak = {"outcome": "crashed", "as_expected": False, "error": "x", "companion_identical": False}
    table = [{"case": "empty", "expected": "refused", "arms": {"baseline": weak, "candidate": weak}}]
    found = judge_abnormal(table, 0.1)
    assert found.passed is True
    assert found.facts["unexpected_in_baseline"] == ["baseline empty: crashed"]


def test_without_its_probes_a_finished_study_is_invalid(
    new_study: Callable[..., StudyPaths], runner_of: Callable[[StudyPaths], StudyRunner]
) -> None:
    paths = new_study(*PROBES)
    runner = runner_of(paths)
    for place in runner.missing():
        if not place.probe:
            runner.run_place(place)
    found = compare(load_study(paths.folder))
    assert verdict(found, "sabotage")["passed"] is False
    assert "no sealed probe of baseline" in verdict(found, "sabotage")["detail"]
    assert places.Place.of(RunKey.parse("probe-baseline-1")) in runner.missing()


def test_only_an_exploratory_study_goes_without(experiments: Any) -> None:
    config = compose_arms("short", ["study.probes=false", "study.blocks=6"]).baseline.config
    checks.check(config, exploratory=True)
    with pytest.raises(InputError, match=r"study\.probes is false"):
        checks.check(config, exploratory=False)
    sabotaged = compose_arms("short", ["engine.inject.sabotage='kv_cache.enabled=false'"]).baseline.config
    with pytest.raises(InputError, match="belongs to the sabotaged probe"):
        checks.check(sabotaged, exploratory=True)
    planted = compose_arms("short", ["engine.inject.corner='min_running=2;delay_us=9'"]).baseline.config
    with pytest.raises(InputError, match=r"inject\.corner belongs to the test of a counterexample search"):
        checks.check(planted, exploratory=True)
