"""The harness in a process of its own, for tests that kill it: `python harness_driver.py STUDY` runs what is
missing, `python harness_driver.py --cli ...` is the command line. The code's identity is fixed, so that files
that somebody edits meanwhile do not end the study."""

from __future__ import annotations

import sys

from counterproof.cli import main
from counterproof.record import code_identity
from counterproof.record.store import open_store
from counterproof.run.progress import LineProgress, TimeLeft
from counterproof.run.runner import StudyRunner

FIXED = code_identity.CodeIdentity("git", "0" * 40, lock_sha256="fixed")


def run(study: str) -> int:
    """Recover, then run everything that is missing."""
    paths = open_store().study(study)
    with StudyRunner.lock(paths):
        runner = StudyRunner(paths, LineProgress(TimeLeft({"blocks": 1, "workload": {}, "schedule": []}, [])))
        runner.recover()
        runner.run_missing()
    return 0


if __name__ == "__main__":
    code_identity.identify = lambda start=None: FIXED  # type: ignore[assignment]
    sys.exit(main(sys.argv[2:]) if sys.argv[1] == "--cli" else run(sys.argv[1]))
