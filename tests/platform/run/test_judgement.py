"""Judging a study: killed at any moment it leaves a study that verifies, and age is the evidence's, not the judge's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof.decide import report
from counterproof.record import atomic, canonical, journal
from counterproof.record.journal import Journal
from counterproof.record.store import StudyPaths
from counterproof.record.verify import verify_study
from counterproof.run import judge

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def judged(build_study: Callable[..., Path]) -> StudyPaths:
    """A study that was judged once, when another decision was made."""
    paths = StudyPaths(build_study(blocks=1, requests=2, new_tokens=2))
    judge.judge(paths)
    return paths


class Killed(BaseException):
    """Ends the code under test where a signal would."""


class Fuse:
    """Lets `calls` calls of the wrapped functions through; before the next one everything ends."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if self._left == 0:
                raise Killed
            self._left -= 1
            return function(*arguments, **named)

        return called


@pytest.mark.parametrize("calls", range(8))
def test_a_judgement_that_is_cut_off_anywhere_leaves_a_study_that_verifies(
    judged: StudyPaths, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    fuse = Fuse(calls)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", fuse.around(Journal.append))
        patch.setattr(atomic, "write_bytes", fuse.around(atomic.write_bytes))
        patch.setattr(report, "render", fuse.around(report.render))
        with pytest.raises(Killed):
            judge.judge(judged)
    verify_study(judged.folder)
    judge.judge(judged)
    verify_study(judged.folder)
    assert journal.read(judged.journal).events[-1]["kind"] == "reported"


def test_judging_old_evidence_again_makes_it_no_younger(
    judged: StudyPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = canonical.read_json(judged.decision)
    monkeypatch.setattr(judge, "now_utc", lambda: "2099-01-01T00:00:00.000Z")
    judge.judge(judged)
    second = canonical.read_json(judged.decision)
    assert second["decided_utc"] == "2099-01-01T00:00:00.000Z"
    assert first["expires_utc"] == second["expires_utc"]
    stop = second["answers"]["stop_and_rollback"]
    assert stop["expires_utc"] == second["expires_utc"] < "2099"
