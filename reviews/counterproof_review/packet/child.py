"""Starting the measuring process, passing on its progress, and ending it whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
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
from counterproof_review.packet.offline import Surroundings

MODULE = "counterproof_review.packet.executor"
LOG = "executor.log"
_KINDS: dict[int, type[CounterproofError]] = {EXIT_INPUT: InputError, EXIT_SETUP: SetupError}
_END_SECONDS = 20.0


def run_executor(
    around: Surroundings, folder: Path, progress: Callable[[dict[str, Any]], None]
) -> CounterproofError | None:
    """Run the task in `folder` to its end; return the error it reported, None for success.

    Every deadline is the executor's own (each run has one). No process of it is left, also on KeyboardInterrupt.
    """
    error: CounterproofError | None = None
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            around.command("-P", "-m", MODULE, str(folder), str(os.getpid())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(around.environment),
            cwd=folder,
            start_new_session=True,
        )
    try:
        for line in process.stdout or ():
            message = json.loads(line)
            if message["kind"] == "error":
                kind = _KINDS.get(message["code"], ExecutionError)
                error = kind(message["message"], details=message["details"])
            else:
                progress(message)
        code = process.wait()
    finally:
        _end(process)
    if code != 0 and error is None:
        error = ExecutionError(f"the measuring process ended with code {code}", details=_tail(folder / LOG))
    if code == 0:
        (folder / LOG).unlink(missing_ok=True)
    return error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask first, so that it can end its own children; then make sure."""
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"log: {line}" for line in lines[-8:]]
