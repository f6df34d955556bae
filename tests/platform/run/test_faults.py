"""Faults strike small copies of a study: each is noticed, journalled and survived, and its line is sealed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof.errors import EvidenceError, ExecutionError, InputError
from counterproof.measure.compare import compare
from counterproof.measure.load import load_study
from counterproof.record import journal
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import verify_study
from counterproof.run.faults import registry, suite
from counterproof.run.faults.bench import Bench
from counterproof.run.faults.fault import HONEST, NOT_APPLICABLE, NOT_RECOVERED, RECOVERED, Outcome

SUPPORT = Path(__file__).resolve().parents[2] / "support"
pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def bench(new_study: Callable[..., StudyPaths], opened: Store, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench of the short experiment, whose harness has this test's code identity; steps of 4 ms leave time to kill."""
    monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps({"gain": "feature"}))
    harness = (sys.executable, str(SUPPORT / "harness_driver.py"), "--cli")
    return Bench(opened.create(), "short", (), harness=harness, seed=5, longest_s=0.0)


def strike(bench: Bench, name: str) -> dict[str, Any]:
    (row,) = suite.run_faults(registry.choose([name]), bench)
    return row


def kinds(bench: Bench, name: str) -> list[str]:
    return [event["kind"] for event in journal.read(bench.store.study(name).journal).events]


def test_a_killed_run_is_repeated(bench: Bench) -> None:
    row = strike(bench, "kill_run")
    assert row["outcome"] == RECOVERED, row
    assert 0 <= row["detected_after_s"] <= row["recovered_after_s"]
    assert row["outputs_identical"] is True
    assert kinds(bench, "kill_run").count("run_failed") == 1
    assert kinds(bench, "kill_run").count("run_sealed") == 1


def test_a_killed_harness_is_taken_up_again(bench: Bench) -> None:
    row = strike(bench, "kill_harness")
    assert (row["outcome"], row["outputs_identical"]) == (RECOVERED, True), row
    assert {"run_lost", "run_sealed"} & set(kinds(bench, "kill_harness"))
    assert row["requests_lost"] is None  # who is dead counts nothing


def test_a_full_disk_ends_the_attempt_and_not_the_study(bench: Bench) -> None:
    row = strike(bench, "full_disk")
    assert (row["outcome"], row["outputs_identical"]) == (RECOVERED, True), row
    assert {"run_failed", "run_lost"} & set(kinds(bench, "full_disk"))
    verify_study(bench.store.study("full_disk").folder)


def test_a_slow_disk_and_a_clock_that_is_set_lose_nothing(bench: Bench) -> None:
    slow = strike(bench, "slow_disk")
    assert (slow["outcome"], slow["requests_lost"], slow["detected_after_s"]) == (RECOVERED, 0, None), slow
    assert slow["recovered_after_s"] > 1.0  # a record and its journal are a dozen flushes of 0.1 s
    stepped = strike(bench, "clock_step")
    assert stepped["outcome"] == RECOVERED, stepped
    (event,) = [
        e
        for e in journal.read(bench.store.study("clock_step").journal).events
        if e["kind"] == "clock_stepped"
    ]
    assert event["by_s"] == pytest.approx(-3600, abs=2)


@pytest.mark.slow
def test_a_tracker_that_does_not_answer_costs_a_view_and_no_study(bench: Bench) -> None:
    row = strike(bench, "tracker_unreachable")
    assert (row["outcome"], row["outputs_identical"]) == (RECOVERED, True), row
    assert "view_failed" in kinds(bench, "tracker_unreachable")


def test_what_does_not_apply_says_why(bench: Bench) -> None:
    server = strike(bench, "kill_server")
    assert (server["outcome"], server["detected_after_s"]) == (NOT_APPLICABLE, None)
    assert "see kill_run" in server["detail"]
    assert strike(bench, "pool_exhausted")["outcome"] == NOT_APPLICABLE  # the fake target counts none
    with pytest.raises(InputError, match="there is no fault 'kill_rnu'"):
        registry.choose(["kill_rnu"])


class Ruin:
    """A fault of another package."""

    name = "ruin"
    what = "everything ends"

    def __init__(self, result: Outcome | Exception) -> None:
        self._result = result

    def strike(self, bench: Bench) -> Outcome:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def test_lines_are_sealed_added_to_and_shown(
    bench: Bench, new_study: Callable[..., StudyPaths], tmp_path: Path
) -> None:
    paths = new_study(name="home")
    rows = suite.run_faults(
        [Ruin(ExecutionError("it broke")), Ruin(Outcome(HONEST, "said so", 0.12345))], bench
    )
    assert [row["outcome"] for row in rows] == [NOT_RECOVERED, HONEST]
    assert (rows[0]["detail"], rows[1]["detected_after_s"]) == ("ExecutionError: it broke", 0.123)
    suite.record(paths, rows[:1])
    suite.record(paths, rows[1:])
    verify_study(paths.folder)
    assert compare(load_study(paths.folder))["failures"] == rows
    lines = paths.failures.read_text().splitlines()
    paths.failures.write_text("\n".join([lines[0].replace("not recovered", "recovered"), lines[1]]) + "\n")
    with pytest.raises(EvidenceError, match=r"failures\.jsonl of home was changed"):
        verify_study(paths.folder)


def test_a_package_adds_a_fault_by_an_entry_point(
    fake_target: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake_target / "own_fault.py").write_text(
        "class Own:\n    name = 'own'\n    what = 'nothing'\n\n    def strike(self, bench):\n"
        "        from counterproof.run.faults.fault import Outcome\n        return Outcome('recovered', 'easy')\n"
    )
    points = next(fake_target.glob("*.dist-info")) / "entry_points.txt"
    points.write_text(points.read_text() + "[counterproof.faults]\nown = own_fault:Own\n")
    assert strike(bench, "own")["detail"] == "easy"
    assert json.dumps([fault.name for fault in registry.all_faults()]).count("own") == 1
