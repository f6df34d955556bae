"""Kill -9 at twenty random moments, of the harness and of the measured process: nothing sealed changes, every lost
attempt is journalled, no process is left, and the study completes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from counterproof.record import canonical, journal, manifest
from counterproof.record.store import StudyPaths
from counterproof.record.verify import verify_study
from counterproof.run import places

SUPPORT = Path(__file__).resolve().parents[2] / "support"
DEADLINE = 90.0
FAKE_KILLS = 15
TINY_KILLS = 5

pytestmark = [pytest.mark.timeout(280), pytest.mark.slow]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll for a condition, failing loudly at a deadline."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def start(paths: StudyPaths) -> subprocess.Popen[bytes]:
    log = (paths.folder.parent / f"{paths.name}.log").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, str(SUPPORT / "harness_driver.py"), paths.name], stdout=log, stderr=log
        )


def sealed_hashes(paths: StudyPaths) -> dict[str, str]:
    """sha256 of every file of every sealed record."""
    return {
        f"{folder.name}/{name}": canonical.sha256_file(folder / name)
        for folder in paths.run_folders()
        if manifest.is_sealed(folder)
        for name in [*manifest.list_files(folder), manifest.FILE_NAME]
    }


def descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them runs any more (a zombie waits only to be reaped by whoever inherits it)."""
    return not any(map(_runs, processes))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def events_of(paths: StudyPaths) -> int:
    """Number of whole lines, without verifying: the harness may be writing just now."""
    return paths.journal.read_bytes().count(b"\n")


def is_worker(process: psutil.Process) -> bool:
    try:
        return "worker_main" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def torment(paths: StudyPaths, kills: int, chance: random.Random, longest: float) -> Iterator[str]:
    """Kill at up to `kills` moments, fewer if the study completes before, and yield who was hit. A moment is drawn
    as a number of journal events to wait for and a delay after it; a dead harness is started again."""
    harness = start(paths)
    try:
        for number in range(kills):
            if harness.poll() is not None:
                harness = start(paths)
            before = events_of(paths)
            wanted, delay = chance.randint(0, 2), chance.uniform(0.0, longest)
            # The first event of a fresh harness comes only after its imports.
            _wait_for_events(paths, harness, before + wanted)
            time.sleep(delay)
            hit = _kill_worker(harness) if number % 3 == 2 else _kill_harness(harness)
            if hit == "nobody":
                assert harness.poll() == 0, (paths.folder.parent / f"{paths.name}.log").read_text()
                return
            yield hit
    finally:
        harness.kill()
        harness.wait()


def _wait_for_events(paths: StudyPaths, harness: subprocess.Popen[bytes], wanted: int) -> None:
    wait_until(lambda: events_of(paths) >= wanted or harness.poll() is not None, "no event")


def _kill_worker(harness: subprocess.Popen[bytes]) -> str:
    """Kill the measured process of the moment, or the next one if none is there."""

    def hit() -> bool:
        if harness.poll() is not None:
            return True
        for process in filter(is_worker, descendants(psutil.Process(harness.pid))):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                return True
        return False

    wait_until(hit, "no measured process appeared")
    return "nobody" if harness.poll() is not None else "worker"


def _kill_harness(harness: subprocess.Popen[bytes]) -> str:
    if harness.poll() is not None:
        return "nobody"
    family = descendants(psutil.Process(harness.pid))
    os.kill(harness.pid, signal.SIGKILL)
    harness.wait()
    # PR_SET_PDEATHSIG ends the children; one that was just starting notices that its parent is gone.
    wait_until(lambda: gone(family), f"orphans: {family}")
    return "harness"


def endure(register: Callable[[int], StudyPaths], kills: int, seed: int, longest: float) -> None:
    """Torment studies, one after the other, until `kills` have hit; after each kill what was sealed must be
    untouched, and at the end every study complete."""
    chance = random.Random(seed)
    hits: list[str] = []
    lost = 0
    while len(hits) < kills:
        paths = register(len(hits))
        known: dict[str, str] = {}
        for hit in torment(paths, kills - len(hits), chance, longest):
            hits.append(hit)
            now = sealed_hashes(paths)
            assert known.items() <= now.items()
            known = now
            journal.read(paths.journal)  # the chain holds at every moment, but for a torn last line
        last = start(paths)
        assert last.wait(DEADLINE) == 0, (paths.folder.parent / f"{paths.name}.log").read_text()
        assert known.items() <= sealed_hashes(paths).items()
        lost += check_complete(paths)
    assert hits.count("harness") >= kills // 2
    assert "worker" in hits
    assert lost, "no attempt was lost; the kills came at idle moments only"


def check_complete(paths: StudyPaths) -> int:
    """Every planned run is sealed once; every other attempt is journalled as ended, and kept. Returns how many."""
    study = verify_study(paths.folder)
    assert len(study.runs) == len(places.places(study.plan))
    assert places.open_attempts(study.journal) == []
    started = [e["run"] for e in study.journal if e["kind"] == "run_started"]
    ended = {e["run"]: e["kind"] for e in study.journal if e["kind"] in places.ENDINGS}
    assert sorted(started) == sorted(ended)
    lost = {run for run, kind in ended.items() if kind != "run_sealed"}
    assert set(started) - {run.folder.name for run in study.runs} == lost
    assert {folder.name for folder in paths.run_folders()} <= set(started)
    for name in lost:
        assert not manifest.is_sealed(paths.runs / name)
    return len(lost)


def test_twenty_kills_cost_attempts_and_nothing_else(
    new_study: Callable[..., StudyPaths], measured_processes: Callable[[], list[str]]
) -> None:
    def short(number: int) -> StudyPaths:
        return new_study("study.attempts=50", "study.equivalence_requests=1", name=f"fake-{number}")

    def tiny(number: int) -> StudyPaths:
        """The engine and the model that ships: start-up is longer, and torch has threads of its own."""
        return new_study(
            *("target=intaglio_local", "engine.model=tiny", "engine.dtype=bf16", "study.attempts=50"),
            *("study.blocks=1", "study.equivalence_requests=0", "workload.requests=2"),
            name=f"tiny-{number}",
        )

    endure(short, FAKE_KILLS, seed=20260101, longest=0.6)
    endure(tiny, TINY_KILLS, seed=7, longest=2.0)
    wait_until(lambda: measured_processes() == [], f"left over: {measured_processes()}")
