"""A wall clock that is set while a study runs, and a tracking server that does not answer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from counterproof.record import injection, journal, views
from counterproof.record.mlflow_view import VARIABLE
from counterproof.run.faults.bench import Bench, Watch
from counterproof.run.faults.fault import NOT_RECOVERED, RECOVERED, Outcome
from counterproof.run.targets.http.server_process import free_port

STEP_S = -3600.0


@dataclass
class _Setter(Watch):
    clock: injection.ClockStep | None = None
    struck_s: float | None = None

    def requests_done(self, done: int, total: int) -> None:
        super().requests_done(done, total)
        if self.struck_s is None and self.clock is not None:
            self.clock.by(STEP_S)
            self.struck_s = time.monotonic()


class ClockSet:
    """The wall clock goes back an hour in the midst of a run: durations stay right and the journal says so."""

    name = "clock_step"
    what = f"the wall clock is set by {STEP_S:g} s while a run is measured"

    def strike(self, bench: Bench) -> Outcome:
        expected, paths = bench.reference(), bench.study(self.name)
        with injection.clock_step() as clock:
            watch = _Setter(clock=clock)
            began = time.monotonic()
            answers = bench.run(paths, watch)
            took = time.monotonic() - began
        events = journal.read(paths.journal).events
        noted = [event for event in events if event["kind"] == "clock_stepped"]
        right = [0 <= event["seconds"] <= took for event in events if event["kind"] == "run_sealed"]
        same = answers.tokens == expected.tokens
        after = None
        if noted and watch.sealed_s is not None and watch.struck_s is not None:
            after = watch.sealed_s - watch.struck_s
        return Outcome(
            RECOVERED if same and noted and right and all(right) else NOT_RECOVERED,
            f"the journal notes a step of {noted[0]['by_s']:.0f} s; durations come from another clock"
            if noted
            else "the journal does not note it",
            after,
            0.0,
            answers.failed,
            0,
            same,
        )


class TrackerUnreachable:
    """The tracking server does not answer: the study is whole without it, and its view is brought up to date later."""

    name = "tracker_unreachable"
    what = "nothing listens at MLFLOW_TRACKING_URI"

    def strike(self, bench: Bench) -> Outcome:
        expected, paths = bench.reference(), bench.study(self.name)
        answers = bench.run(paths, Watch())
        began = time.monotonic()
        with _tracker(f"http://127.0.0.1:{free_port()}"):
            problems = views.refresh(bench.store, paths)
        detected = time.monotonic()
        with _tracker(None):
            left = views.refresh(bench.store, paths)
        kinds = [event["kind"] for event in journal.read(paths.journal).events]
        same = answers.tokens == expected.tokens
        noticed = any("MLflow" in problem for problem in problems) and "view_failed" in kinds
        return Outcome(
            RECOVERED if same and noticed and not left else NOT_RECOVERED,
            f"{len(problems)} view not updated and journalled; afterwards {len(left)} are missing",
            detected - began,
            time.monotonic() - began,
            0,
            0,
            same,
        )


@contextmanager
def _tracker(uri: str | None) -> Iterator[None]:
    """The variable as it is to be, and as it was afterwards."""
    before = os.environ.pop(VARIABLE, None)
    if uri is not None:
        os.environ[VARIABLE] = uri
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before
