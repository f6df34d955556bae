"""An intaglio server of the harness's own that follows a file; its output goes to a log, it ends with the harness."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from counterproof.errors import ExecutionError
from counterproof.run.deploy.live_load import serving
from counterproof.run.targets.http import fetch
from counterproof.run.targets.http.pool import Address
from counterproof.run.targets.http.server_process import PAUSE, ServerProcess

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
        self._address: Address | None = None

    def __enter__(self) -> PrivateServer:
        environment = {name: value for name, value in os.environ.items() if name != _KEY}
        process = ServerProcess(follow_command(self._served, "--port", "0"), environment, self._log)
        try:
            deadline = time.monotonic() + self._ready_s
            self._address = Address(LOOPBACK, process.announced_port(deadline))
            process.await_health(self._address, "/health", {}, deadline)
        except BaseException:
            process.stop(STOP_S)
            raise
        self._process = process
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.stop(STOP_S)

    @property
    def address(self) -> Address:
        """Raises ExecutionError before the start."""
        if self._address is None:
            raise ExecutionError("the private server was not started")
        return self._address

    def effective(self) -> dict[str, Any]:
        """What the server says it runs, with its fingerprint."""
        found = fetch.get_json(self.address, "/intaglio/effective", {})
        return {"fingerprint": found["fingerprint"], "effective": found["effective"]}

    def await_config(self, wanted: str, timeout_s: float) -> int:
        """When (perf_counter_ns) new requests meet the configuration `wanted`. Raises ExecutionError."""
        deadline = time.monotonic() + timeout_s
        while (seen := serving(self.address)) != wanted:
            if time.monotonic() > deadline:
                tail = [] if self._process is None else self._process.tail()
                raise ExecutionError(
                    f"the server does not change over: it serves {seen}, not {wanted}", details=tail
                )
            time.sleep(PAUSE)
        return time.perf_counter_ns()
