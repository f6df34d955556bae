"""Every run has a process of its own, and one that leaves without a result was no run, whatever code it left with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from counterproof.errors import ExecutionError
from counterproof.record import journal, manifest
from counterproof.record.store import StudyPaths
from counterproof.record.verify import verify_study
from counterproof.run.places import Place
from counterproof.run.runner import StudyRunner

pytestmark = pytest.mark.timeout(120)
NewStudy = Callable[..., StudyPaths]
RunnerOf = Callable[[StudyPaths], StudyRunner]


def test_no_run_shares_a_process_with_another_or_with_the_harness(
    new_study: NewStudy, runner_of: RunnerOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory peaks and caches of one run could otherwise be those of another."""
    told = tmp_path / "pids"
    monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps({"pids": str(told)}))
    paths = new_study("study.equivalence_requests=0", "study.blocks=1")
    runner_of(paths).run_missing()
    pids = told.read_text(encoding="utf-8").split()
    assert len(pids) == len(set(pids)) == len(verify_study(paths.folder).runs) == 4
    assert str(os.getpid()) not in pids


@pytest.mark.parametrize("way", ["exit", "vanish"])
def test_a_run_that_leaves_politely_in_the_middle_is_a_failed_attempt(
    new_study: NewStudy, runner_of: RunnerOf, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It ends with code 0; a launcher that runs all jobs in one process would drop the rest in silence."""
    paths = new_study("study.equivalence_requests=0", "study.attempts=1", "study.blocks=1")
    runner = runner_of(paths)
    runner.run_place(Place(0, "baseline"))
    monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps({way: "candidate"}))
    with pytest.raises(ExecutionError, match="ended with code 0 without a result"):
        runner.run_place(Place(0, "candidate"))
    last = journal.read(paths.journal).events[-1]
    assert (last["kind"], last["run"]) == ("run_failed", "00-candidate-1")
    assert not manifest.is_sealed(paths.runs / "00-candidate-1")
    # Whoever comes after it is run all the same.
    monkeypatch.delenv("COUNTERPROOF_FAKE")
    runner.run_missing()
    assert runner.missing() == []
    assert len(verify_study(paths.folder).runs) == 4
