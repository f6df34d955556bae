"""One run, one fresh process: started in a group of its own, watched, ended at its deadline, never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from counterproof.errors import (
    EXIT_INPUT,
    EXIT_SETUP,
    CounterproofError,
    ExecutionError,
    InputError,
    SetupError,
)
from counterproof.record import code_identity
from counterproof.run.child_env import child_environment
from counterproof.run.spec import RunSpec
from counterproof.run.worker_main import PROGRESS_FD
from intaglio.config import ThreadsConfig

LOG = "log.txt"
SAMPLES = "samples.jsonl"
END_SECONDS = 10.0

Progress = Callable[[int, int], None]


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    pipe: int
    error: dict[str, Any] | None = None
    finished: bool = False
    total: int = 0
    buffer: bytes = b""
    lines: list[bytes] = field(default_factory=list)


def execute(
    spec: RunSpec, threads: ThreadsConfig, deadline_s: float, progress: Progress | None = None
) -> None:
    """Run `spec` to its end; afterwards its raw results, log and samples lie in `spec.folder`.

    progress   called with (requests done, requests in all)

    Raises InputError, SetupError or ExecutionError as the process reports; ExecutionError past the deadline or
    when it died. Whatever happens, also KeyboardInterrupt, no process of the run is left.
    """
    folder = Path(spec.folder)
    environment = child_environment(threads, spec.server.get("key_variable"))
    with _worker(spec, folder, environment) as child, _sampler(child.process.pid, folder, environment):
        _follow(child, time.monotonic() + deadline_s, deadline_s, progress)
        try:
            code = child.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise ExecutionError(
                "the run's process did not end after its work", details=_tail(folder)
            ) from None
    if child.error is not None:
        raise _error(child.error)
    if code != 0 or not child.finished:
        raise ExecutionError(f"the run's process {_how_it_ended(code)}", details=_tail(folder))


@contextlib.contextmanager
def _worker(spec: RunSpec, folder: Path, environment: dict[str, str]) -> Iterator[_Child]:
    reading, writing = os.pipe()
    stamped = replace(
        spec,
        parent_pid=os.getpid(),
        origins=code_identity.origins(),
        spawned_ns=time.perf_counter_ns(),
    )
    try:
        with (folder / LOG).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _LAUNCH.format(writing=writing, fixed=PROGRESS_FD)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=(writing,),
                start_new_session=True,
            )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        _send(process, stamped.to_json().encode())
        yield _Child(process, reading)
    finally:
        _end(process)
        os.close(reading)


# The pipe keeps the number that the kernel gave it; the worker expects a fixed one.
_LAUNCH = (
    "import os, runpy\n"
    "os.dup2({writing}, {fixed}, inheritable=False)\n"
    "if {writing} != {fixed}: os.close({writing})\n"
    "runpy.run_module('counterproof.run.worker_main', run_name='__main__', alter_sys=True)\n"
)


@contextlib.contextmanager
def _sampler(pid: int, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "counterproof.run.sampler",
        str(pid),
        str(folder / SAMPLES),
        str(os.getpid()),
    ]
    with (folder / "sampler.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    try:
        yield
        # It ends by itself when the watched process is gone.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    finally:
        _end(process)
    (folder / "sampler.log").unlink()


def _follow(child: _Child, deadline: float, deadline_s: float, progress: Progress | None) -> None:
    """Read the process's messages until it closes its end of the pipe."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ExecutionError(
                f"the run did not end within its deadline of {deadline_s:g} s",
                details=["raise study.run_deadline_s if that is too short for this machine"],
            )
        ready, _, _ = select.select([child.pipe], [], [], min(left, 1.0))
        if not ready:
            continue
        data = os.read(child.pipe, 1 << 16)
        if not data:
            return
        child.buffer += data
        *lines, child.buffer = child.buffer.split(b"\n")
        for line in lines:
            _handle(child, json.loads(line), progress)


def _handle(child: _Child, message: dict[str, Any], progress: Progress | None) -> None:
    kind = message["kind"]
    if kind == "ready":
        child.total = message["total"]
    elif kind == "error":
        child.error = message
    elif kind == "finished":
        child.finished = True
    if progress is not None and kind in ("ready", "progress"):
        progress(message.get("done", 0), child.total)


def _send(process: subprocess.Popen[bytes], data: bytes) -> None:
    if process.stdin is None:
        raise ExecutionError("the run's process has no standard input")
    with contextlib.suppress(BrokenPipeError), process.stdin as stream:
        stream.write(data)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process's whole group, if anything of it is left, and reap it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _error(message: dict[str, Any]) -> CounterproofError:
    kinds: dict[int, type[CounterproofError]] = {EXIT_INPUT: InputError, EXIT_SETUP: SetupError}
    kind = kinds.get(message["code"], ExecutionError)
    return kind(message["message"], details=message["details"])


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code} without a result"


def _tail(folder: Path, lines: int = 8) -> list[str]:
    text = (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"log: {line}" for line in text[-lines:]] or ["its log is empty"]
