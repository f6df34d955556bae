"""Kill -9: of the measured process, of the harness, of the server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from counterproof.record import journal
from counterproof.record.store import StudyPaths
from counterproof.record.verify import verify_plan
from counterproof.run.faults.bench import BASELINE, DEADLINE_S, Bench, Watch, read_answers, servers, workers
from counterproof.run.faults.fault import NOT_APPLICABLE, NOT_RECOVERED, RECOVERED, Outcome
from counterproof.run.runner import StudyRunner

Find = Callable[[int], list[psutil.Process]]


@dataclass
class _Killer(Watch):
    """Kills a process below this one some time after the run's first answer: before that a server may not be up."""

    find: Find = workers
    after_s: float = 0.0
    struck_s: float | None = None
    lost: int = 0

    def requests_done(self, done: int, total: int) -> None:
        super().requests_done(done, total)
        if not done or self.struck_s is not None:
            return
        # Nobody but this callback waits: the measured process works on.
        time.sleep(self.after_s)
        for process in self.find(os.getpid()):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    self.struck_s, self.lost = time.monotonic(), done
                    process.kill()


class KillRun:
    """The measured process dies; the harness repeats the run."""

    name = "kill_run"
    what = "the measured process is killed while it works"

    def strike(self, bench: Bench) -> Outcome:
        return _kill_below(bench, self.name, workers)


class KillServer:
    """The measured server dies; its client reports failed requests or a failed run."""

    name = "kill_server"
    what = "the measured server is killed while requests are on their way"

    def strike(self, bench: Bench) -> Outcome:
        paths = bench.study(f"{self.name}-look")
        if verify_plan(paths)[0]["target"] not in ("http", "openai"):
            return Outcome(NOT_APPLICABLE, "the engine runs in the measured process: see kill_run")
        return _kill_below(bench, self.name, servers)


def _kill_below(bench: Bench, name: str, find: Find) -> Outcome:
    expected = bench.reference()
    paths, killer = bench.study(name), _Killer(find=find, after_s=bench.moment_s())
    answers = bench.run(paths, killer)
    if killer.struck_s is None:
        return Outcome(NOT_APPLICABLE, "the run was over before anything could be killed")
    failed, sealed = killer.failed_s, killer.sealed_s
    kinds = [event["kind"] for event in journal.read(paths.journal).events]
    noticed = failed is not None and "run_failed" in kinds
    same = answers.tokens == expected.tokens
    # A server's clients see their requests fail: the run may be whole, with the failures in its record.
    whole = sealed is not None and (noticed or answers.failed > 0)
    return Outcome(
        RECOVERED if whole and (same or answers.failed) else NOT_RECOVERED,
        "the attempt is journalled as failed and was repeated"
        if noticed
        else f"the record holds {answers.failed} failed requests",
        None if failed is None else failed - killer.struck_s,
        None if sealed is None else sealed - killer.struck_s,
        killer.lost + answers.failed,
        None,
        same,
    )


class KillHarness:
    """The harness dies, and everything below it; the next one takes the study up."""

    name = "kill_harness"
    what = "the harness is killed at a random moment of a run and started again"

    def strike(self, bench: Bench) -> Outcome:
        expected, paths = bench.reference(), bench.study(self.name)
        with subprocess.Popen(
            [*bench.harness, "step", paths.name, "--block", "0", "--arm", "baseline"],
            env={**os.environ, "COUNTERPROOF_STORE": str(bench.store.root)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as harness:
            if not _await_start(paths, harness):
                harness.kill()
                return Outcome(NOT_RECOVERED, f"the harness ended with code {harness.wait()} before its run")
            time.sleep(bench.moment_s())
            struck = time.monotonic()
            harness.send_signal(signal.SIGKILL)
            harness.wait()
        watch = Watch()
        with StudyRunner.lock(paths):
            runner = bench.runner(paths, watch)
            lost = runner.recover()
            detected = time.monotonic()
            if BASELINE in runner.missing():
                runner.run_place(BASELINE)
        same = read_answers(paths, BASELINE).tokens == expected.tokens
        detail = (
            "the attempt is journalled as lost and was repeated" if lost else "its record was whole already"
        )
        ended = watch.sealed_s or detected
        return Outcome(
            RECOVERED if same else NOT_RECOVERED, detail, detected - struck, ended - struck, None, None, same
        )


def _await_start(paths: StudyPaths, harness: subprocess.Popen[bytes]) -> bool:
    """Wait until the harness has journalled the start of its run. False if it ended before."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        # Asked first: a harness that ends between the two looks has written everything before the second.
        over = harness.poll() is not None or time.monotonic() > deadline
        if b'"run_started"' in paths.journal.read_bytes():
            return True
        if over:
            return False
        time.sleep(0.005)
