"""One cell: one contestant, one case, one repeat, in a fresh process; kept as a file, so that a run can go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers import catalogue
from benchmarks.peers.environments import Record
from benchmarks.peers.runners.protocol import Task
from benchmarks.peers.workloads import Case

REPOSITORY = Path(__file__).resolve().parents[2]
SCHEMA = "counterproof-peer-cell/1"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A peer, or intaglio in one configuration. `options` differ between contestants of the same peer.

    only: the workloads it takes part in; () for all.
    """

    name: str
    title: str
    peer: str
    options: dict[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for every cell of a run."""

    root: Path
    model: Path
    threads: int
    wait_policy: str
    timeout_s: float
    python: str  # runs intaglio and the floors


def task(case: Case, dtype: str, contestant: Contestant, setting: Setting, record: Record | None) -> Task:
    """What the runner is told."""
    prepared = {kind: str(setting.root / path) for kind, path in (record.prepared if record else {}).items()}
    return Task(
        model=str(setting.model),
        prepared=prepared,
        dtype=dtype,
        threads=setting.threads,
        wait_policy=setting.wait_policy,
        cache=case.cache,
        prefix_cache=case.shared > 0,
        warm=case.warm,
        warm_new=case.warm_new,
        batches=[case.batch],
        new=case.new,
        options=contestant.options,
    )


def run(job: Task, contestant: Contestant, setting: Setting) -> dict[str, Any]:
    """Run a task in a process of its own. The answer, or {"failed": why} for a crash or a time-out."""
    if contestant.peer == "intaglio":
        python, own = setting.python, {"PYTHONPATH": str(REPOSITORY / "engine")}
    else:
        python = str(catalogue.python_of(setting.root, contestant.peer))
        own = catalogue.process_environment(setting.root, contestant.peer)
    command = [python, "-m", f"benchmarks.peers.runners.{contestant.peer}"]
    return _answer(command, json.dumps(asdict(job)), _environment(setting) | own, setting.timeout_s)


def run_floors(setting: Setting) -> dict[str, Any]:
    """The machine's rates at this moment, in a process of its own; {"failed": why} as above."""
    command = [setting.python, "-m", "benchmarks.peers.floors", str(setting.threads)]
    return _answer(command, "", _environment(setting), setting.timeout_s)


def kept(folder: Path, name: str, identity: dict[str, Any]) -> dict[str, Any] | None:
    """A finished cell of this identity, or None. A failed one counts as not finished."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    cell: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return cell if cell["identity"] == identity and "failed" not in cell["answer"] else None


def keep(folder: Path, name: str, identity: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Write a cell, whole, and return it."""
    cell = {
        "schema": SCHEMA,
        "name": name,
        "identity": identity,
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": os.getloadavg()[0],
        "answer": answer,
    }
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.part"
    part.write_text(json.dumps(cell), encoding="utf-8")
    part.replace(folder / f"{name}.json")
    return cell


def _environment(setting: Setting) -> dict[str, str]:
    """The parent's environment with the threads set and without its module path."""
    kept_back = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LD_PRELOAD")}
    return kept_back | {
        "OMP_NUM_THREADS": str(setting.threads),
        "OMP_WAIT_POLICY": setting.wait_policy,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _answer(command: list[str], text: str, environment: dict[str, str], timeout_s: float) -> dict[str, Any]:
    """Run to the end or the time limit; then the whole process group is ended, and nothing is left behind."""
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=REPOSITORY,
            start_new_session=True,
        )
    except OSError as error:
        return {"failed": f"cannot start: {error.strerror}"}
    try:
        out, said = process.communicate(text, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        process.communicate()
        return {"failed": f"took more than {timeout_s:.0f} s"}
    except BaseException:
        _end(process)
        raise
    finally:
        _end(process)
    if process.returncode != 0 or not out.strip():
        return {"failed": _reason(said, process.returncode)}
    answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return answer | {"process_s": round(time.monotonic() - began, 2)}


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of the process's own session."""
    if sys.platform != "win32":
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return


def _reason(said: str, status: int) -> str:
    """The last line of what a process said, without folders."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "it said nothing"
    words = [Path(word).name if word.startswith("/") else word for word in last.split()]
    return f"exit status {status}: {' '.join(words)[:300]}"
