"""One of several processes that use a store at once: `python store_driver.py STUDY` registers a study with the fake
target, seals one run, judges it, tells `ready`, waits for a line, and then refreshes the views.

Prints one JSON object: what the other name that everybody wants came to, and what went wrong with the views.
"""

from __future__ import annotations

import json
import sys

from counterproof.errors import InputError
from counterproof.record import code_identity, views
from counterproof.record.store import open_store
from counterproof.run import judge
from counterproof.run.places import Place
from counterproof.run.progress import LineProgress, TimeLeft
from counterproof.run.register import StudyRequest, register
from counterproof.run.runner import StudyRunner

FIXED = code_identity.CodeIdentity("git", "0" * 40, lock_sha256="fixed")
OVERRIDES = ("study.blocks=1", "study.equivalence_requests=0")


def take(name: str) -> bool:
    """Register the study that every process wants to have; whether this one got it."""
    try:
        register(open_store(), StudyRequest("short", OVERRIDES, (), name, exploratory=True))
    except InputError as error:
        if "already" not in str(error):
            raise
        return False
    return True


def main(name: str) -> int:
    code_identity.identify = lambda start=None: FIXED  # type: ignore[assignment]
    store = open_store()
    paths = register(store, StudyRequest("short", OVERRIDES, (), name, exploratory=True))
    got = take("wanted-by-all")
    with StudyRunner.lock(paths):
        runner = StudyRunner(paths, LineProgress(TimeLeft({"blocks": 1, "workload": {}, "schedule": []}, [])))
        runner.run_place(Place(0, "baseline"))
    judge.judge(paths)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps({"got": got, "problems": views.refresh(store, paths)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
