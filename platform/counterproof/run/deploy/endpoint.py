"""A running intaglio server as seen from outside: what it says it serves, and when that changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from counterproof.errors import ExecutionError
from counterproof.run.deploy.live_load import serving
from counterproof.run.targets.http import fetch
from counterproof.run.targets.http.pool import Address
from counterproof.run.targets.http.server_process import PAUSE


class Endpoint:
    """`tail`: the last lines of the server's log, for errors."""

    def __init__(self, address: Address, tail: Callable[[], list[str]] = list) -> None:
        self.address = address
        self._tail = tail

    def effective(self) -> dict[str, Any]:
        """What the server says it runs, with its fingerprint."""
        found = fetch.get_json(self.address, "/intaglio/effective", {})
        return {"fingerprint": found["fingerprint"], "effective": found["effective"]}

    def await_config(self, wanted: str, timeout_s: float) -> int:
        """When (perf_counter_ns) new requests meet the configuration `wanted`. Raises ExecutionError."""
        deadline = time.monotonic() + timeout_s
        while (seen := serving(self.address)) != wanted:
            if time.monotonic() > deadline:
                raise ExecutionError(
                    f"the server does not change over: it serves {seen}, not {wanted}", details=self._tail()
                )
            time.sleep(PAUSE)
        return time.perf_counter_ns()
