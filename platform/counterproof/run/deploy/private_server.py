"""An intaglio server of the harness's own that follows a file; its output goes to a log, it ends with the harness."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType

from counterproof.errors import ExecutionError
from counterproof.run.deploy.endpoint import Endpoint
from counterproof.run.targets.http.pool import Address
from counterproof.run.targets.http.server_process import ServerProcess

LOOPBACK = "127.0.0.1"
STOP_S = 30.0
# How long a replaced engine may finish what it began: as long as a request may last, so that a change ends none.
DRAIN_S = 600
# A key in the environment would lock the harness out of its own server.
_KEY = "INTAGLIO_API_KEY"


def follow_command(served: Path, *more: str) -> list[str]:
    """`intaglio serve` that follows the file `served`; what `more` says again counts."""
    command = [sys.executable, "-P", "-m", "intaglio", "serve", "--follow", str(served), "--ready-json"]
    return [*command, "--drain-timeout-s", str(DRAIN_S), *more]


class PrivateServer:
    """`with PrivateServer(file, log, ready_s) as server:` serves what `file` says on a free port of this machine."""

    def __init__(self, served: Path, log: Path, ready_s: float) -> None:
        self._served = served
        self._log = log
        self._ready_s = ready_s
        self._process: ServerProcess | None = None
        self._endpoint: Endpoint | None = None

    def __enter__(self) -> PrivateServer:
        environment = {name: value for name, value in os.environ.items() if name != _KEY}
        process = ServerProcess(follow_command(self._served, "--port", "0"), environment, self._log)
        try:
            deadline = time.monotonic() + self._ready_s
            address = Address(LOOPBACK, process.announced_port(deadline))
            process.await_health(address, "/health", {}, deadline)
        except BaseException:
            process.stop(STOP_S)
            raise
        self._process = process
        self._endpoint = Endpoint(address, process.tail)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.stop(STOP_S)

    @property
    def endpoint(self) -> Endpoint:
        """Raises ExecutionError before the start."""
        if self._endpoint is None:
            raise ExecutionError("the private server was not started")
        return self._endpoint
