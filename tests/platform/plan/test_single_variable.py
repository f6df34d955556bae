"""One variable, enforced: which candidates are accepted, and what the refusal of the others lists."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from counterproof.errors import InputError, RefusedError
from counterproof.plan import prereg
from counterproof.plan.factor import effective_exceptions
from counterproof.record.difference import ABSENT, Difference, differences


def test_the_projects_own_experiment_changes_exactly_its_factor() -> None:
    arms = prereg.compose_arms("kv_cache", [])
    assert arms.diff is not None
    assert [str(d) for d in arms.diff.changed] == ["engine.kv_cache.enabled: false -> true"]
    assert arms.diff.fanned == ()
    assert list(arms.compositions) == ["baseline", "candidate", "again", "slowed"]
    again, base = arms.compositions["again"], arms.baseline
    assert differences(base.resolved, again.resolved) == []
    slowed = differences(base.resolved, arms.compositions["slowed"].resolved)
    assert [str(d) for d in slowed] == ["engine.inject.step_delay_us: 0 -> 15000"]


def test_overrides_reach_all_arms() -> None:
    arms = prereg.compose_arms("kv_cache", ["engine.dtype=fp32", "workload.requests=20"])
    for composition in arms.compositions.values():
        assert composition.resolved["engine.dtype"] == "fp32"
        assert composition.resolved["workload.requests"] == 20


@pytest.mark.parametrize(
    ("candidate", "details"),
    [
        (["engine.kv_cache.enabled=false"], ["engine.kv_cache.enabled has the same value in both"]),
        (
            ["engine.kv_cache.enabled=true", "engine.kv_cache.block_tokens=32"],
            [
                "engine.kv_cache.block_tokens: 16 -> 32   (not the factor)",
                "engine.kv_cache.enabled: false -> true",
            ],
        ),
        (["engine.dtype=fp32"], ["engine.dtype: 'bf16' -> 'fp32'   (not the factor)"]),
        (["engine=tiny"], ["engine.model: 'smollm2-135m' -> 'tiny'   (not the factor)"]),
        (
            ["engine.kv_cache.enabled=true", "workload.requests=12"],
            ["workload.requests: 11 -> 12   (not the factor)", "engine.kv_cache.enabled: false -> true"],
        ),
    ],
)
def test_other_candidates_are_refused_with_every_difference(candidate: list[str], details: list[str]) -> None:
    with pytest.raises(RefusedError) as caught:
        prereg.compose_arms("kv_cache", [], candidate)
    assert set(details) <= set(caught.value.details)


def test_the_factor_cannot_be_set_for_all_arms() -> None:
    with pytest.raises(InputError, match="is what this experiment varies"):
        prereg.compose_arms("kv_cache", ["engine.kv_cache.enabled=true"])


def test_a_calibration_has_equal_arms_and_takes_no_candidate() -> None:
    arms = prereg.compose_arms("calibration", [])
    assert arms.diff is None
    assert list(arms.compositions) == ["baseline", "again", "slowed"]
    with pytest.raises(InputError, match="calibration"):
        prereg.compose_arms("calibration", [], ["engine.kv_cache.enabled=false"])


def test_an_interpolation_of_the_factor_may_follow_it() -> None:
    arms = prereg.compose_arms("kv_cache", ["engine.trace.enabled=${engine.kv_cache.enabled}"])
    assert arms.diff is not None
    assert [d.path for d in arms.diff.changed] == ["engine.kv_cache.enabled"]
    assert [str(d) for d in arms.diff.fanned] == ["engine.trace.enabled: false -> true"]
    factor = arms.baseline.config.factor
    assert factor is not None
    assert {"kv_cache.enabled", "trace.enabled"} <= set(effective_exceptions(factor, arms.diff))


@pytest.fixture
def folder(tmp_path: Path, repository: Path) -> Path:
    place = tmp_path / "experiments"
    shutil.copytree(repository / "experiments", place)
    (place / "engine" / "wide.yaml").write_text(
        "model: smollm2-135m\ndtype: bf16\nnumerics: {mode: fast}\n"
        "scheduler: {max_running: 32, token_budget: 4096}\n"
    )
    text = (place / "kv_cache.yaml").read_text().replace("name: kv_cache", "name: bundle")
    head, _, rest = text.partition("factor:")
    _, _, tail = rest.partition("primary:")
    bundle = (
        "factor:\n  path: engine\n  kind: group\n  baseline: smollm2_bf16\n  candidate: wide\n  lossless: true\n"
        "  bottleneck: none\n  bundle: [engine.scheduler.max_running, engine.scheduler.token_budget]\n\nprimary:"
    )
    (place / "bundle.yaml").write_text(head + bundle + tail)
    return place


def test_a_declared_bundle_may_change_exactly_its_leaves(folder: Path) -> None:
    arms = prereg.compose_arms("bundle", [], folder=folder)
    assert arms.diff is not None
    assert [str(d) for d in arms.diff.changed] == [
        "engine.scheduler.max_running: 16 -> 32",
        "engine.scheduler.token_budget: 2048 -> 4096",
    ]


def test_a_bundle_that_changes_another_leaf_is_refused(folder: Path) -> None:
    path = folder / "engine" / "wide.yaml"
    path.write_text(path.read_text() + "kv_cache: {block_tokens: 8}\n")
    with pytest.raises(RefusedError) as caught:
        prereg.compose_arms("bundle", [], folder=folder)
    assert "engine.kv_cache.block_tokens: 16 -> 8   (not the factor)" in caught.value.details


def test_a_bundle_that_lists_more_than_it_changes_is_refused(folder: Path) -> None:
    path = folder / "engine" / "wide.yaml"
    path.write_text(path.read_text().replace("token_budget: 4096", "token_budget: 2048"))
    with pytest.raises(RefusedError, match="bundle") as caught:
        prereg.compose_arms("bundle", [], folder=folder)
    assert caught.value.details == ["engine.scheduler.token_budget"]


def test_differences_are_type_strict_and_know_absent_from_null() -> None:
    left = {"a": 16, "b": 16, "c": 1, "d": None, "f": [1, 2], "same": {"x": 1}}
    right = {"a": 16.0, "b": "16", "c": True, "e": None, "f": [1, 2.0], "same": {"x": 1}}
    assert differences(left, right) == [
        Difference("a", 16, 16.0),
        Difference("b", 16, "16"),
        Difference("c", 1, True),
        Difference("d", None, ABSENT),
        Difference("e", ABSENT, None),
        Difference("f", [1, 2], [1, 2.0]),
    ]
    assert [d.path for d in differences(left, right, excepted=["a", "b", "f"])] == ["c", "d", "e"]
