"""Documents kept by intaglio's server: uploaded by POST /v1/caches, deleted at the end, each within a deadline."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Mapping, Sequence

from counterproof.errors import ExecutionError
from counterproof.run.targets.documents import TTL_S, Kept
from counterproof.run.targets.http import fetch
from counterproof.run.targets.http.pool import Address

PATH = "/v1/caches"


class ServerKeeper:
    """The contexts of one server. `timeout_s`: how long it may take to compute one document."""

    def __init__(self, address: Address, headers: Mapping[str, str], model: str, timeout_s: float) -> None:
        self._address = address
        self._headers = {"Content-Type": "application/json", **headers}
        self._model = model
        self._timeout_s = timeout_s

    def create(self, tokens: Sequence[int]) -> Kept:
        """Upload a document. Raises ExecutionError when the server refuses it or does not answer in time."""
        body = json.dumps({"model": self._model, "prompt": list(tokens), "ttl_s": TTL_S}).encode()
        what = f"a document of {len(tokens)} tokens cannot be kept"
        try:
            status, answer = fetch.send(
                self._address, "POST", PATH, self._headers, body, timeout_s=self._timeout_s
            )
            found = json.loads(answer) if status == 201 else None
            if isinstance(found, dict):
                return Kept(str(found["id"]), int(found["tokens"]), int(found["bytes"]))
        except TimeoutError:
            details = ["raise server.ready_s if the server needs longer for one document"]
            raise ExecutionError(f"{what}: no answer within {self._timeout_s:g} s", details=details) from None
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ExecutionError(f"{what}: {error!r}") from None
        raise ExecutionError(f"{what}: HTTP {status}: {answer[:200].decode('utf-8', 'replace')}")

    def delete(self, name: str) -> None:
        """Delete a context. A server that does not is told of in the run's log: it forgets the context later."""
        try:
            status, answer = fetch.send(self._address, "DELETE", f"{PATH}/{name}", self._headers)
            if status in (200, 404):
                return
            fault = f"HTTP {status}: {answer[:200].decode('utf-8', 'replace')}"
        except (OSError, http.client.HTTPException) as error:
            fault = repr(error)
        print(f"the context {name} was not deleted; it expires by itself: {fault}", file=sys.stderr)
