"""Reserve blocks: sealed with the plan, called up in order and by the registered reason alone, and all counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from counterproof.errors import EvidenceError, InputError, RefusedError
from counterproof.plan.reserve import blocks_in_force, why_extend
from counterproof.record import canonical
from counterproof.record.journal import Journal
from counterproof.record.store import StudyPaths
from counterproof.run import judge, places
from counterproof.run.places import Place
from counterproof.run.progress import TimeLeft
from counterproof.run.runner import StudyRunner

RESERVE = ("study.blocks=1", "study.reserve_blocks=3")
IMPRECISE = {"check": "a_a", "passed": False, "imprecise": True, "detail": "too wide"}
HOLDS = {"check": "clock", "passed": True, "detail": ""}


def test_reserve_blocks_are_planned_and_sealed_before_the_first_run(
    new_study: Callable[..., StudyPaths],
) -> None:
    paths = new_study(*RESERVE)
    plan = canonical.read_json(paths.plan)
    assert (plan["blocks"], plan["reserve_blocks"], len(plan["schedule"])) == (1, 3, 4)
    assert len(set(plan["workload"]["sha256_by_block"])) == 4
    assert [p.block for p in places.places(plan)] == [None, None, 0, 0, 0, 0]


def test_extension_runs_the_next_blocks_until_there_is_no_reason(
    new_study: Callable[..., StudyPaths], runner_of: Callable[[StudyPaths], StudyRunner], notes: Any
) -> None:
    paths = new_study(*RESERVE)
    reasons = iter(["too wide", "still too wide", "never asked"])
    runner_of(paths).run_missing(extend=lambda: next(reasons))
    events = Journal(paths.journal).events()
    assert [(e["blocks"], e["reason"]) for e in events if e["kind"] == "extended"] == [
        (3, "too wide"),
        (4, "still too wide"),
    ]
    assert next(reasons) == "never asked"  # the reserve was used up, so nobody was asked a third time
    sealed = places.done(events)
    assert {p.block for p in sealed} == {None, 0, 1, 2, 3}
    assert len(sealed) == 2 + 4 * 4
    assert any(line.startswith("extended 8 ") for line in notes.lines)
    found = judge.judge(paths)
    assert found.comparison["blocks"] == [0, 1, 2, 3]
    assert found.comparison["final"] is True
    assert found.comparison["extensions"][1] == {"blocks": 4, "reason": "still too wide"}
    assert "to 4 blocks, as registered: still too wide" in paths.reports[0].read_text(encoding="utf-8")


def test_without_a_reason_the_reserve_stays_unused(
    new_study: Callable[..., StudyPaths], runner_of: Callable[[StudyPaths], StudyRunner]
) -> None:
    paths = new_study(*RESERVE)
    runner = runner_of(paths)
    runner.run_missing(extend=lambda: None)
    assert {p.block for p in places.done(Journal(paths.journal).events())} == {None, 0}
    with pytest.raises(RefusedError, match="not in the plan"):
        runner.run_place(Place(1, "baseline"))
    assert judge.judge(paths).comparison["final"] is True


def test_a_killed_extension_goes_on_where_it_was(
    new_study: Callable[..., StudyPaths], runner_of: Callable[[StudyPaths], StudyRunner]
) -> None:
    paths = new_study(*RESERVE)
    runner = runner_of(paths)
    runner.run_missing()
    Journal(paths.journal).append("extended", blocks=3, reason="too wide")
    assert {p.block for p in runner_of(paths).missing()} == {1, 2}
    runner_of(paths).run_missing(extend=lambda: None)
    assert judge.judge(paths).comparison["blocks"] == [0, 1, 2]


@pytest.mark.parametrize("blocks", [2, 4, 5, 1])
def test_a_journal_that_extends_otherwise_than_planned_is_refused(blocks: int) -> None:
    plan = {"blocks": 1, "reserve_blocks": 3}
    with pytest.raises(EvidenceError, match="steps of 2"):
        blocks_in_force(plan, [{"kind": "extended", "blocks": blocks}])
    assert blocks_in_force({"blocks": 6}, []) == 6


@pytest.mark.parametrize(
    ("validity", "final", "wanted"),
    [
        ([IMPRECISE, HOLDS], True, True),
        ([IMPRECISE, HOLDS], False, False),
        ([{**IMPRECISE, "imprecise": False}], True, False),
        ([IMPRECISE, {**HOLDS, "passed": False}], True, False),
        ([HOLDS], True, False),
        ([{**IMPRECISE, "passed": None}], True, False),
    ],
)
def test_only_an_imprecise_a_a_alone_is_a_reason(
    validity: list[dict[str, Any]], final: bool, wanted: bool
) -> None:
    reason = why_extend({"validity": validity, "final": final})
    assert (reason == "too wide") is wanted


def test_time_left_counts_what_is_called_up() -> None:
    plan = {"blocks": 1, "reserve_blocks": 2, "workload": {}, "schedule": [["baseline"]] * 3}
    left = TimeLeft(plan, [])
    assert left.total == 1
    left.extended([Place(1, "baseline"), Place(2, "baseline")])
    assert left.total == 3


@pytest.mark.parametrize("reserve", [-1, 99])
def test_a_reserve_out_of_range_is_refused(new_study: Callable[..., StudyPaths], reserve: int) -> None:
    with pytest.raises(InputError, match="reserve_blocks"):
        new_study("study.blocks=1", f"study.reserve_blocks={reserve}")
