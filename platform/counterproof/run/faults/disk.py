"""A disk that is slow, and one that is full."""

from __future__ import annotations

import os
import resource
import subprocess
import time

from counterproof.record import injection, journal
from counterproof.run.faults.bench import DEADLINE_S, Bench, Watch
from counterproof.run.faults.fault import NOT_APPLICABLE, NOT_RECOVERED, RECOVERED, Outcome

FLUSH_DELAY_S = 0.1
# Beside what the journal has already: enough to say what went wrong, too little for a record.
ROOM_BYTES = 3072


class SlowDisk:
    """Every flush of the record takes longer; nothing is lost, and no timed part waits for it."""

    name = "slow_disk"
    what = f"every flush of the harness takes {FLUSH_DELAY_S:g} s longer"

    def strike(self, bench: Bench) -> Outcome:
        expected, paths, watch = bench.reference(), bench.study(self.name), Watch()
        began = time.monotonic()
        with injection.slow_disk(FLUSH_DELAY_S):
            answers = bench.run(paths, watch)
        same = answers.tokens == expected.tokens
        return Outcome(
            RECOVERED if same and watch.failed_s is None else NOT_RECOVERED,
            "nothing notices: records are written after the timed part, which waits for no disk",
            None,
            None if watch.sealed_s is None else watch.sealed_s - began,
            answers.failed,
            0,
            same,
        )


class FullDisk:
    """No file can grow beyond a few KiB: the attempt fails, says so, and is repeated when there is room."""

    name = "full_disk"
    what = "no file of the record can grow beyond a few KiB (RLIMIT_FSIZE), as on a full disk"

    def strike(self, bench: Bench) -> Outcome:
        expected, paths = bench.reference(), bench.study(self.name, "study.attempts=1")
        limit = paths.journal.stat().st_size + ROOM_BYTES
        began = time.monotonic()
        ended = subprocess.run(
            [*bench.harness, "step", paths.name, "--block", "0", "--arm", "baseline"],
            env={**os.environ, "COUNTERPROOF_STORE": str(bench.store.root), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
            timeout=DEADLINE_S,
            check=False,
        )
        detected = time.monotonic()
        if ended.returncode == 0:
            return Outcome(NOT_APPLICABLE, f"the whole record fits into {limit} bytes a file")
        watch = Watch()
        answers = bench.run(paths, watch)
        kinds = [event["kind"] for event in journal.read(paths.journal).events]
        said = next((kind for kind in ("run_failed", "run_lost") if kind in kinds), None)
        same = answers.tokens == expected.tokens
        sealed = watch.sealed_s
        return Outcome(
            RECOVERED if same and said is not None and sealed is not None else NOT_RECOVERED,
            f"exit code {ended.returncode}, the journal says {said}; repeated when there was room",
            detected - began,
            None if sealed is None else sealed - began,
            None,
            None,
            same,
        )
