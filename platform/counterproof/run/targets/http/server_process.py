"""A server that the harness starts for one run: an argument list without a shell, a deadline, and an end.

The server stays in the process group of the run's process, which the harness kills as a whole; it also dies with
that process by the kernel's own rule. At the end it is asked to stop, then it and all that it started are killed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from counterproof.errors import ExecutionError, InputError, SetupError
from counterproof.run.targets.http import fetch
from counterproof.run.targets.http.pool import Address

LOG = "server.log"
PAUSE = 0.05
_LAUNCH = (
    "import os, sys\n"
    "from counterproof.run import orphan\n"
    "orphan.die_with_parent({parent})\n"
    "os.execvpe(sys.argv[1], sys.argv[1:], os.environ)\n"
)


class ServerProcess:
    """A running server command. `log` is where its output goes."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it. Raises SetupError when the program is not there."""
        self.log = log
        launch = [sys.executable, "-P", "-c", _LAUNCH.format(parent=os.getpid()), *command]
        try:
            with log.open("wb") as stream:
                self._process = subprocess.Popen(
                    launch,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                )
        except OSError as error:
            raise SetupError(f"the server cannot be started: {error}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    def announced_port(self, deadline: float) -> int:
        """The port in the line of JSON that the server prints when it is ready. Raises ExecutionError."""
        while True:
            for line in self._lines():
                if line.startswith("{") and '"port"' in line:
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        return int(json.loads(line)["port"])
            self._wait(deadline, "say where it listens")

    def await_health(self, address: Address, path: str, headers: Mapping[str, str], deadline: float) -> None:
        """Return when `path` answers 200. Raises ExecutionError past the deadline or when the server has ended."""
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if fetch.get(address, path, headers, 5.0)[0] == 200:
                    return
            self._wait(deadline, "become healthy")

    def stop(self, grace_s: float) -> None:
        """Ask it to end, wait, then kill it and every process that it started."""
        family = self._family()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(family, timeout=5.0)

    def _family(self) -> list[psutil.Process]:
        try:
            server = psutil.Process(self.pid)
            return [*server.children(recursive=True), server]
        except psutil.NoSuchProcess:
            return []

    def _wait(self, deadline: float, what: str) -> None:
        code = self._process.poll()
        if code is not None:
            raise ExecutionError(
                f"the server ended with code {code} before it could {what}", details=self.tail()
            )
        if time.monotonic() > deadline:
            raise ExecutionError(
                f"the server did not {what} in time", details=["raise server.ready_s", *self.tail()]
            )
        time.sleep(PAUSE)

    def tail(self, lines: int = 6) -> list[str]:
        """The last lines of its output."""
        return [f"server: {line}" for line in self._lines()[-lines:]]

    def _lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fill(command: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """The arguments with `{port}` and the like filled in. Raises InputError for a name that there is none of."""
    try:
        return [part.format_map(values) if "{" in part else part for part in command]
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(
            f"server.command has a placeholder that cannot be filled: {error}",
            details=[f"there are: {', '.join(sorted(values))}; write {{{{ for a brace"],
        ) from None


def assignments(variables: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` entries as a mapping. Raises InputError."""
    found = {}
    for entry in variables:
        name, sign, value = entry.partition("=")
        if not sign or not name:
            raise InputError(f"server.variables has '{entry}', which is not NAME=VALUE")
        found[name] = value
    return found
