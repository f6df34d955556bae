"""What must be true of every run's tokens and caches, whatever was changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from counterproof.measure import invariants
from counterproof.measure.load import RunData, StudyData, load_study

SMALL = {"blocks": 1, "requests": 3, "new_tokens": 6}


@pytest.fixture
def study(build_study: Callable[..., Path]) -> StudyData:
    return load_study(build_study(**SMALL))


def first(study: StudyData) -> RunData:
    return study.runs[(0, "candidate")]


def test_honest_tokens_pass_and_say_what_was_not_recorded(study: StudyData) -> None:
    found = invariants.check_tokens(study)
    assert found.passed is True
    assert "end tokens are ignored" in found.detail
    study.plan["workload"]["ignore_eos"] = False
    assert "which tokens end a text was not recorded" in invariants.check_tokens(study).detail


def test_a_token_that_is_not_the_hashed_one_is_found(study: StudyData) -> None:
    first(study).tokens.loc[2, "token_id"] += 1
    found = invariants.check_tokens(study)
    assert found.passed is False
    assert "the tokens recorded are not those that were hashed" in found.detail


def test_more_tokens_than_were_asked_for_are_found(study: StudyData) -> None:
    first(study).requests.loc[0, "max_new_tokens"] = 5
    assert "request 0 has more tokens than were asked for" in invariants.check_tokens(study).detail


def test_nothing_may_follow_an_end_token(study: StudyData, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = first(study).tokens["token_id"].tolist()
    study.plan["workload"]["ignore_eos"] = False
    monkeypatch.setattr(invariants, "end_tokens", lambda _: {ids[1]})
    assert "request 0 goes on after an end token" in invariants.check_tokens(study).detail
    study.plan["workload"]["ignore_eos"] = True
    assert invariants.check_tokens(study).passed is True
    study.plan["workload"]["ignore_eos"] = False
    monkeypatch.setattr(invariants, "end_tokens", lambda _: {-1})
    assert invariants.check_tokens(study).passed is True


def test_a_declared_cache_may_hit_but_not_one_run_of_the_baseline_more_than_the_other(
    study: StudyData,
) -> None:
    first(study).requests["cached_tokens"] = 32
    first(study).effective["prefix_cache.enabled"] = True
    assert invariants.check_cold_cache(study).passed is True
    for arm in study.arms:
        study.runs[(0, arm)].effective["prefix_cache.enabled"] = True
    study.runs[(0, "again")].requests["cached_tokens"] = 40
    found = invariants.check_cold_cache(study)
    assert found.passed is False
    assert "00-baseline-1 hit 0 tokens and 00-again-1, the very same, 120" in found.detail


def test_a_target_that_does_not_tell_leaves_it_open(study: StudyData) -> None:
    for run in study.runs.values():
        run.requests["cached_tokens"] = float("nan")
    found = invariants.check_cold_cache(study)
    assert (found.passed, found.facts) == (None, {"not_applicable": True})
