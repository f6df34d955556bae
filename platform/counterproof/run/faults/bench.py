"""Where faults strike: small exploratory studies of the same experiment, in a store of their own.

A fault never touches the study it is recorded in. What is run of every small study is one place, the baseline's run
of block 0, and its answers are held against those of a run that nothing disturbed.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from counterproof.record import tables
from counterproof.record.store import RunKey, Store, StudyPaths
from counterproof.record.verify import verify_study
from counterproof.run.places import Place
from counterproof.run.register import StudyRequest, register
from counterproof.run.runner import StudyRunner

DEADLINE_S = 600.0
WORKER, WATCHER = "counterproof.run.worker_main", "counterproof.run.targets.http.watch"
BASELINE = Place(0, "baseline")
# A study of one place; nothing of it is ever judged.
SMALL = (
    "study.blocks=1",
    "study.reserve_blocks=0",
    "study.equivalence_requests=0",
    "study.probes=false",
    "study.faults=false",
    "study.attempts=3",
)


@dataclass
class Watch:
    """A progress that notes when a run began, failed and was sealed, and can act in its midst (monotonic seconds)."""

    failed_s: float | None = None
    sealed_s: float | None = None
    requests: int = 0
    attempts: int = 0

    def run_started(self, key: RunKey, number: int, total: int) -> None:
        """Nothing to do."""

    def requests_done(self, done: int, total: int) -> None:
        """`done` of `total` requests are answered."""
        self.requests = min(done, total)

    def run_ended(self, key: RunKey, note: str) -> None:
        """The attempt `key` is in the journal."""
        self.attempts = max(self.attempts, key.attempt)
        if note.startswith("sealed"):
            self.sealed_s = time.monotonic()
        elif self.failed_s is None:
            self.failed_s = time.monotonic()

    def waiting(self, what: str) -> None:
        """Nothing to do."""

    def extended(self, missing: list[Place], reason: str) -> None:
        """Nothing to do."""


class Bench:
    """Makes small studies of an experiment.

    overrides  the user's, for all arms
    harness    the command of a harness in a process of its own
    seed       of the moments at which faults strike
    longest_s  a fault strikes so long after a run began, at most
    """

    def __init__(
        self,
        store: Store,
        experiment: str,
        overrides: Sequence[str] = (),
        *,
        harness: Sequence[str] = (sys.executable, "-m", "counterproof"),
        seed: int = 1,
        longest_s: float = 0.5,
    ) -> None:
        self.store = store
        self.harness = list(harness)
        self._chance = random.Random(seed)
        self._longest_s = longest_s
        self._experiment = experiment
        self._overrides = list(overrides)
        self._references: dict[tuple[str, ...], Answers] = {}

    def study(self, name: str, *overrides: str) -> StudyPaths:
        """Register a small study; a second one of the same name gets a number. Raises what registration raises."""
        taken = sum(folder.name.split("--")[0] == name for folder in self.store.study_folders())
        name = f"{name}--{taken + 1}" if taken else name
        own = {token.partition("=")[0]: token for token in (*self._overrides, *SMALL, *overrides)}
        request = StudyRequest(self._experiment, tuple(own.values()), (), name, exploratory=True)
        return register(self.store, request)

    def moment_s(self) -> float:
        """How long after a run began the next fault strikes."""
        return self._chance.uniform(0.0, self._longest_s)

    def runner(self, paths: StudyPaths, watch: Watch) -> StudyRunner:
        """The study's runner in this process."""
        return StudyRunner(paths, watch)

    def run(self, paths: StudyPaths, watch: Watch, place: Place = BASELINE) -> Answers:
        """Account for what was cut off, run one place, and read its answers. Raises what a run raises."""
        with StudyRunner.lock(paths):
            runner = self.runner(paths, watch)
            runner.recover()
            if place.arm == "candidate" and BASELINE in runner.missing():
                runner.run_place(BASELINE)
            runner.run_place(place)
        return read_answers(paths, place)

    def reference(self, *overrides: str, place: Place = BASELINE) -> Answers:
        """The answers of an undisturbed run, made once for every set of overrides."""
        key = (place.arm, *overrides)
        if key not in self._references:
            paths = self.study(f"reference-{len(self._references)}", *overrides)
            self._references[key] = self.run(paths, Watch(), place)
        return self._references[key]


@dataclass(frozen=True)
class Answers:
    """A sealed run's answers by request, how many failed, and its counters."""

    tokens: dict[int, tuple[Any, ...]]
    failed: int
    counters: dict[str, int]


def read_answers(paths: StudyPaths, place: Place) -> Answers:
    """Of a verified record. Raises EvidenceError when there is none or it was changed."""
    run = verify_study(paths.folder).run(place.block, place.arm)
    rows = [] if run is None else tables.read(run.folder / "requests.parquet")
    tokens = {row["request_index"]: (row["output_tokens"], row["output_sha256"]) for row in rows}
    failed = sum(row["status"] != "ok" for row in rows)
    return Answers(tokens, failed, {} if run is None else dict(run.manifest["counters"]))


def workers(pid: int) -> list[psutil.Process]:
    """Measured processes below `pid`."""
    return [process for process in _below(pid) if any(WORKER in part for part in _command(process))]


def servers(pid: int) -> list[psutil.Process]:
    """What the measured processes below `pid` have started, but for the harness's own watcher: a server and its
    children, whatever they are called."""
    found = [process for worker in workers(pid) for process in _below(worker.pid)]
    return [process for process in found if WATCHER not in _command(process)]


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
