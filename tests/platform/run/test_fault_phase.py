"""Faults as a phase of a study: planned, resumed where it was cut off, in the report; and a full pool of the real engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof.cli import main
from counterproof.record import journal, lock
from counterproof.record.lock import FileLock
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import verify_plan, verify_study
from counterproof.run.faults import phase, registry, suite
from counterproof.run.faults.bench import Bench
from counterproof.run.faults.fault import RECOVERED, Outcome
from counterproof.run.runner import StudyRunner

pytestmark = pytest.mark.timeout(200)


class Easy:
    """A fault that is survived, by copies of the very study: without its phase of faults, or there would be no end."""

    name = "easy"
    what = "nothing much"

    def strike(self, bench: Bench) -> Outcome:
        plan = verify_plan(bench.study("copy"))[0]
        copied = (plan["faults"], plan["blocks"], plan["workload"]["requests"])
        return Outcome(RECOVERED, json.dumps(copied))


class Interrupting:
    """A fault during which somebody presses Ctrl-C, the first time."""

    name = "interrupting"
    what = "Ctrl-C"
    struck: list[int]

    def strike(self, bench: Bench) -> Outcome:
        self.struck.append(1)
        if len(self.struck) == 1:
            raise KeyboardInterrupt
        return Outcome(RECOVERED, "the second time")


@pytest.fixture
def two_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("Fresh", (Interrupting,), {"struck": []})
    monkeypatch.setattr(registry, "_OWN", (Easy, kind))


def test_a_study_with_a_phase_of_faults_goes_on_where_it_was_cut_off(
    new_study: Callable[..., StudyPaths],
    opened: Store,
    two_faults: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["run", "short", "--exploratory", "--blocks", "1", "--study", "f", "--faults"]
    assert main([*arguments, "workload.requests=2", "study.equivalence_requests=0"]) == 130
    paths = opened.study("f")
    assert verify_plan(paths)[0]["faults"] is True
    assert [fault.name for fault in phase.due(paths)] == ["interrupting"]
    said = capsys.readouterr().err
    assert "fault 1/2 easy: recovered" in said
    assert "go on with the next fault: counterproof resume f" in said
    runs = len(verify_study(paths.folder).runs)
    assert main(["resume", "f"]) in (0, 5)
    rows = [json.loads(line) for line in paths.failures.read_text().splitlines()]
    assert [row["fault"] for row in rows] == ["easy", "interrupting"]
    assert json.loads(rows[0]["detail"]) == [False, 1, 2]
    assert len(verify_study(paths.folder).runs) == runs  # nothing was measured again
    kinds = [event["kind"] for event in journal.read(paths.journal).events]
    assert kinds.count(suite.RECORDED) == 2
    report = (paths.folder / "report.html").read_text()
    assert "the second time" in report
    assert "Not measured: the plan does not ask for it" not in report
    assert "failure and recovery: no fault" not in report
    assert list(opened.root.glob(".faults-*")) == []
    assert phase.due(paths) == []


def test_a_study_without_it_says_so(new_study: Callable[..., StudyPaths], opened: Store) -> None:
    arguments = ["run", "short", "--exploratory", "--blocks", "1", "--study", "f", "workload.requests=2"]
    assert main([*arguments, "study.equivalence_requests=0"]) in (0, 5)
    paths = opened.study("f")
    assert verify_plan(paths)[0]["faults"] is False
    for name in ("report.html", "report.md"):
        text = (paths.folder / name).read_text()
        assert "Not measured: the plan does not ask for it (study.faults: false" in text
        assert "counterproof faults f" in text
        assert "failure and recovery: no fault was injected" in text


def test_a_full_pool_of_the_real_engine_preempts_recomputes_and_answers_the_same(
    opened: Store, own_machine: None, fixed_code: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ("engine=tiny", "workload.max_new_tokens=24")
    bench = Bench(opened.create(), "kv_cache", small)
    (row,) = suite.run_faults(registry.choose(["pool_exhausted"]), bench)
    assert row["outcome"] == RECOVERED, row
    assert (row["outputs_identical"], row["requests_lost"]) == (True, 0)
    assert row["tokens_recomputed"] > 0
    assert int(row["detail"].split(" ", 1)[0]) > 0  # preemptions
    copy = verify_study(bench.store.study("pool_exhausted").folder)
    run = copy.run(0, "candidate")
    assert run is not None
    assert run.manifest["counters"]["tokens_recomputed"] == row["tokens_recomputed"]


def test_a_lock_that_a_dead_harness_left_to_its_child_is_waited_for(
    new_study: Callable[..., StudyPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child between fork and exec holds what its parent held; the kernel drops it a moment later."""
    paths = new_study()
    left = FileLock(paths.lock)
    left.__enter__()
    waited = threading.Event()

    def drop(_seconds: float) -> None:
        if not waited.is_set():
            waited.set()
            left.__exit__(None, None, None)

    monkeypatch.setattr(lock.time, "sleep", drop)
    with StudyRunner.lock(paths):
        assert waited.is_set()


def test_a_harness_that_ended_between_two_looks_has_begun_its_run(tmp_path: Path) -> None:
    from counterproof.run.faults import kills

    class Ended:
        """Writes its last event and ends while nobody looks: between the look at it and the look at the journal."""

        def poll(self) -> Any:
            paths.journal.write_bytes(b'{"kind":"run_started"}\n')
            return 0

    paths = StudyPaths(tmp_path)
    paths.journal.write_bytes(b"")
    assert kills._await_start(paths, Ended())  # type: ignore[arg-type]
