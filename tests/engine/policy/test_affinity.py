"""threads.affinity: the cores of the engine's threads, checked, and in force in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from intaglio.config import from_flat, parse_overrides
from intaglio.errors import ConfigError

CODE = """
import json, os, sys
from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.errors import ConfigError
from intaglio.intake.request import SamplingParams

try:
    engine = Engine(parse_overrides(sys.argv[1:]))
except ConfigError as error:
    print(json.dumps({"field": error.field, "cores": sorted(os.sched_getaffinity(0))}))
    sys.exit()
(output,) = engine.generate([[5, 6, 7]], SamplingParams(max_tokens=3, ignore_eos=True))
tasks = [int(name) for name in os.listdir("/proc/self/task")]
print(json.dumps({
    "cores": sorted({core for task in tasks for core in os.sched_getaffinity(task)}),
    "threads": len(tasks),
    "tokens": len(output.token_ids),
    "count": engine.effective_config()["threads.count"],
    "affinity": engine.effective_config()["threads.affinity"],
}))
"""

pinned = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or not os.path.isdir("/proc/self/task"), reason="needs Linux"
)


def run(*options: str) -> dict[str, object]:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, "model=tiny", *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("text", ["", "a", "0,", "0-1", "-1", "0, 1", "99999"])
def test_text_that_names_no_cores_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="core numbers") as caught:
        from_flat({"threads.affinity": text})
    assert caught.value.field == "threads.affinity"
    assert parse_overrides(["threads.affinity=0,1"]).threads.affinity == "0,1"
    assert parse_overrides(["threads.affinity=null"]).threads.affinity is None


@pinned
def test_every_thread_runs_on_the_cores_that_were_named() -> None:
    core = max(os.sched_getaffinity(0))
    found = run(f"threads.affinity={core}")
    assert found["cores"] == [core]
    assert (found["tokens"], found["count"], found["affinity"]) == (3, 1, str(core))
    more = run(f"threads.affinity={core}", "threads.count=2")
    assert more["cores"] == [core]
    assert more["count"] == 2


@pinned
def test_a_core_that_is_not_there_is_refused_and_nothing_is_bound() -> None:
    found = run("threads.affinity=0,4093")
    assert found["field"] == "threads.affinity"
    assert found["cores"] == sorted(os.sched_getaffinity(0))
