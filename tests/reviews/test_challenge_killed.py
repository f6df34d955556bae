"""A search with the real engine that is killed without warning goes on where it was, and leaves no process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import psutil
import pytest

DEADLINE = 120.0
DRIVER = """
import sys
from pathlib import Path
from counterproof_review.challenge import claim, hunt
from counterproof_review.challenge.search import Budget
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.verify import Verification, verify

report = Verification()
with Archive.open(Path(sys.argv[1])) as archive:
    verify(archive, report)
budget = Budget(cells=14, probe_blocks=1, confirm=0)
options = hunt.Options(Path(sys.argv[2]), 5.0, 77, budget)
hunt.hunt(report, claim.of_packet(report), options, print)
"""


def measured(journal: Path) -> list[str]:
    """The seeds of finished measurements, a torn last line left out."""
    if not journal.is_file():
        return []
    lines = journal.read_bytes().split(b"\n")[:-1]
    return [e["seed"] for e in map(json.loads, lines) if e["kind"] in ("measured", "related")]


@pytest.mark.slow
def test_kill_and_go_on(challenge_packet: ModuleType, tmp_path: Path) -> None:
    packet, folder = challenge_packet.build(tmp_path), tmp_path / "search"
    command = [sys.executable, "-c", DRIVER, str(packet), str(folder)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    children: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + DEADLINE
        while len(measured(folder / "journal.jsonl")) < 5:
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2  # both engines
        os.kill(process.pid, signal.SIGSTOP)  # or it might end first
        second = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
        assert second.returncode != 0 and "in use by another process" in second.stderr
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    before = measured(folder / "journal.jsonl")
    assert not (folder / "report.json").exists()

    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "report.json").read_text())
    after = measured(folder / "journal.jsonl")
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == 14 + 3  # cells, and the cells that relations were checked in
    assert (report["cells_tried"], report["recalled"]) == (14, len(before))
    assert report["cut_off"] <= 1
    assert report["counts"]["requests"] > 0
    assert not (folder / "work").exists()
