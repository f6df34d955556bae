"""The equivalence phase of a change that may move outputs: each arm in its own mode, and how far apart they are."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof.errors import InputError
from counterproof.measure.compare import compare
from counterproof.measure.load import load_study
from counterproof.plan import checks
from counterproof.plan.compose import compose
from counterproof.plan.schema import ExperimentConfig, GuardrailConfig
from counterproof.record.store import StudyPaths
from counterproof.run import quality
from counterproof.run.runner import StudyRunner
from counterproof.run.targets.intaglio_local import IntaglioLocal
from counterproof.run.targets.protocol import QualityKind
from counterproof.workload.sealed import SealedRequest
from intaglio.config import EngineConfig, from_flat
from intaglio.errors import ConfigError

pytestmark = pytest.mark.timeout(120)
REQUESTS = [
    SealedRequest(index, (0, *(3 + (7 * index + i) % 400 for i in range(12))), 6, seed=1, ignore_eos=True)
    for index in range(3)
]


def engine(model: Path, **changes: Any) -> EngineConfig:
    values = {"model": str(model), "threads.count": 1, "dtype": "fp32"}
    return from_flat({**values, **{name.replace("__", "."): value for name, value in changes.items()}})


def phase(candidate: EngineConfig, reference: EngineConfig | None) -> quality.Phase:
    found = quality.run_phase(IntaglioLocal(), candidate, reference, REQUESTS, lambda _: None)
    found.target.close()
    return found


def scopes(found: quality.Phase) -> dict[str, list[dict[str, Any]]]:
    result: dict[str, list[dict[str, Any]]] = {}
    for event in found.events:
        if event["kind"] == "quality":
            result.setdefault(event["scope"], []).append(event)
    return result


def test_the_candidate_is_held_against_the_baseline_on_the_same_tokens(tiny_model: Path) -> None:
    found = phase(engine(tiny_model, dtype="bf16"), engine(tiny_model))
    events = scopes(found)
    assert {name: len(part) for name, part in events.items()} == {"all": 1, "held_out": 1, "request": 3}
    assert [event["request_index"] for event in events["request"]] == [0, 1, 2]
    assert [event["positions"] for event in events["request"]] == [6, 6, 6]  # the answers, not the prompts
    assert events["held_out"][0]["positions"] >= 1000
    assert events["all"][0]["positions"] == events["held_out"][0]["positions"] + 18
    assert 0 < events["all"][0]["kl_mean"] < 0.05
    assert events["all"][0]["max_dlogit"] >= max(event["max_dlogit"] for event in events["request"]) > 0
    assert found.target.effective_config()["dtype"] == "bf16"
    json.dumps(found.events)
    assert isinstance(IntaglioLocal(), QualityKind)


def test_equal_arms_are_at_no_distance(tiny_model: Path) -> None:
    (everything,) = scopes(phase(engine(tiny_model), engine(tiny_model)))["all"]
    assert (everything["kl_mean"], everything["max_dlogit"], everything["top1_agreement"]) == (0.0, 0.0, 1.0)


def test_an_arm_runs_in_its_own_mode_and_tells_what_company_does_to_it(tiny_model: Path) -> None:
    for mode in ("fast", "auto"):
        found = phase(engine(tiny_model, numerics__mode=mode), None)
        (moved,) = [event for event in found.events if event["kind"] == "batch_logit_difference"]
        effective = found.target.effective_config()["numerics.mode"]
        assert effective == mode if mode == "fast" else effective in ("fast", "invariant")
        assert moved["order_of_additions"] == moved["batching"] == moved["max_abs"]
        if effective == "invariant":
            assert moved["max_abs"] == 0.0
        assert scopes(found) == {}
        assert len(found.results) == 3


def test_a_target_that_cannot_compare_leaves_the_bound_unproven(
    experiments: Path, new_study: Callable[..., StudyPaths], runner_of: Callable[[StudyPaths], StudyRunner]
) -> None:
    path = experiments / "short.yaml"
    path.write_text(
        path.read_text(encoding="utf-8").replace("lossless: true", "lossless: false"), encoding="utf-8"
    )
    paths = new_study("study.blocks=1", "engine.numerics.mode=fast")
    runner_of(paths).run_missing()
    study = load_study(paths.folder)
    for arm in ("baseline", "candidate"):
        # Not forced into invariant mode, where both would be another engine than the timed one.
        assert study.equivalence[arm].effective["numerics.mode"] == "fast"
    comparison = compare(study)
    assert comparison["quality"]["reason"] == "the target did not compare its arms' predictions"
    assert comparison["quality"]["batching"] == {"baseline": 0.25, "candidate": 0.25}
    assert comparison["equivalence"]["equal"] is None
    assert "quality bound" in comparison["equivalence"]["reason"]
    assert comparison["equivalence"]["threshold"] == 0.5


@pytest.mark.parametrize("name", ["batch_invariance", "weight_format", "kv_quantization"])
def test_the_experiments_register_bounds_that_can_be_judged(name: str) -> None:
    config = compose(name, []).config
    checks.check(config, exploratory=False)
    assert config.factor is not None
    assert config.factor.lossless is False
    assert {rail.metric for rail in config.guardrails} >= {
        "quality_kl_mean",
        "quality_top1",
        "quality_ppl_ratio",
    }


@pytest.fixture
def config() -> ExperimentConfig:
    return compose("weight_format", []).config


@pytest.mark.parametrize(
    ("rail", "fault"),
    [
        (GuardrailConfig("quality_kl_mean", "p99", "exact", 0.1, "lower"), "it is 'total'"),
        (GuardrailConfig("quality_kl_mean", "total", "sampled", 0.1, "lower"), "judged by kind exact"),
        (GuardrailConfig("quality_top1", "total", "exact", 0.1, "lower"), "better higher"),
        (GuardrailConfig("quality_beauty", "total", "exact", 0.1, "lower"), "no metric 'quality_beauty'"),
    ],
)
def test_bounds_that_mean_nothing_are_refused(
    config: ExperimentConfig, rail: GuardrailConfig, fault: str
) -> None:
    with pytest.raises(InputError, match="cannot be registered") as caught:
        checks.check(dataclasses.replace(config, guardrails=[rail]), exploratory=True)
    assert fault in str(caught.value)


def test_quality_needs_a_lossy_factor_and_its_phase(config: ExperimentConfig) -> None:
    without = dataclasses.replace(config, study=dataclasses.replace(config.study, equivalence_requests=0))
    lossless = compose("kv_cache", []).config
    rail = GuardrailConfig("quality_kl_mean", "total", "exact", 0.1, "lower")
    for bad, fault in (
        (without, "equivalence_requests, which is 0"),
        (dataclasses.replace(lossless, guardrails=[rail]), "declares lossless: false"),
    ):
        with pytest.raises(InputError, match="cannot be registered") as caught:
            checks.check(bad, exploratory=True)
        assert fault in " ".join([str(caught.value), *caught.value.details])


def test_the_numerics_mode_is_no_lossless_factor() -> None:
    config = compose("batch_invariance", []).config
    assert config.factor is not None
    factor = dataclasses.replace(config.factor, lossless=True)
    with pytest.raises(InputError, match="lossless factor"):
        checks.check(dataclasses.replace(config, factor=factor, guardrails=[]), exploratory=True)


def test_a_study_may_be_timed_in_any_mode() -> None:
    for mode in ("auto", "fast", "invariant"):
        checks.check(compose("kv_cache", [f"engine.numerics.mode={mode}"]).config, exploratory=False)
    with pytest.raises(ConfigError, match=r"numerics\.mode"):
        from_flat({"numerics.mode": "exact"})
