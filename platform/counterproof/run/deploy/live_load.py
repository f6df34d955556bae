"""A load that goes on while a server changes its configuration, and that remembers every single answer.

Each thread keeps one connection and sends the next request when an answer is whole. An answer counts as good only if its
stream ended as it should; which configuration gave it stands in its header.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from counterproof.errors import ExecutionError
from counterproof.plan.schema import ServerConfig
from counterproof.run.targets.http import bodies, chunks, fetch
from counterproof.run.targets.http.pool import Address
from counterproof.workload.sealed import SealedRequest

CONFIG_HEADER = "x-intaglio-config"
PATH = bodies.PATHS["completions"]
SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """One request's end. Times: perf_counter_ns. `config`: the fingerprint that the server named; `error` "" if good."""

    index: int
    started_ns: int
    first_ns: int | None
    done_ns: int
    config: str | None
    token_ids: tuple[int, ...]
    error: str = ""

    @property
    def latency_ms(self) -> float:
        return (self.done_ns - self.started_ns) / 1e6


def request_bodies(address: Address, requests: Sequence[SealedRequest]) -> list[bytes]:
    """What to send for sealed requests, token ids in and token ids out. Raises ExecutionError without a model."""
    listed = fetch.get_json(address, "/v1/models", {})
    model = str(listed["data"][0]["id"])
    server = ServerConfig(dialect=bodies.EXTENDED)
    return [bodies.body_of(request, server, model, _no_text) for request in requests]


def serving(address: Address) -> str | None:
    """The fingerprint of the configuration that new requests meet, None while there is no answer."""
    connection = http.client.HTTPConnection(address.name, address.port, timeout=fetch.SECONDS)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        return answer.headers.get(CONFIG_HEADER)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Client:
    """One keep-alive connection. Not for several threads."""

    def __init__(self, address: Address) -> None:
        self._connection = http.client.HTTPConnection(address.name, address.port, timeout=SECONDS)

    def ask(self, index: int, body: bytes) -> Answer:
        """Send one request and read its whole answer. Raises nothing: what went wrong is in the answer."""
        started = time.perf_counter_ns()
        stream = chunks.Stream()
        first: int | None = None
        config: str | None = None
        try:
            self._connection.request("POST", PATH, body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            config = answer.headers.get(CONFIG_HEADER)
            if answer.status != 200:
                stream.refuse(answer.status, answer.read())
            while piece := answer.read1(1 << 16):
                if stream.feed(piece) and first is None:
                    first = time.perf_counter_ns()
            stream.close()
            if not stream.ended and stream.error is None:
                stream.error = "the stream was cut off"
        except (OSError, http.client.HTTPException) as error:
            stream.error = f"the connection broke: {error!r}"
            self._connection.close()
        error_text = stream.error or ("aborted" if stream.finish_reason == "abort" else "")
        ids = tuple(stream.token_ids or ())
        return Answer(index, started, first, time.perf_counter_ns(), config, ids, error_text)

    def close(self) -> None:
        self._connection.close()


class LiveLoad:
    """`with LiveLoad(...) as load:` keeps `threads` requests in flight until the block ends."""

    def __init__(self, address: Address, sent: Sequence[bytes], threads: int) -> None:
        self._address = address
        self._bodies = sent
        self._changed = threading.Condition()
        self._answers: list[Answer] = []
        self._next = 0
        self._over = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]

    def __enter__(self) -> LiveLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def stop(self) -> list[Answer]:
        """Send no more, wait for what is in flight. Returns every answer in the order of their ends."""
        with self._changed:
            self._over = True
        for thread in self._threads:
            thread.join(SECONDS)
        return self.answers()

    def answers(self) -> list[Answer]:
        with self._changed:
            return list(self._answers)

    def wait(self, held: Callable[[list[Answer]], bool], timeout_s: float, what: str) -> None:
        """Return when the answers so far satisfy `held`. Raises ExecutionError after `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: held(self._answers), timeout_s):
                errors = sorted({a.error for a in self._answers if a.error})[:3]
                raise ExecutionError(f"the load did not {what} within {timeout_s:g} s", details=errors)

    def _work(self) -> None:
        client = Client(self._address)
        try:
            while True:
                with self._changed:
                    if self._over:
                        return
                    index = self._next % len(self._bodies)
                    self._next += 1
                answer = client.ask(index, self._bodies[index])
                with self._changed:
                    self._answers.append(answer)
                    self._changed.notify_all()
        finally:
            client.close()


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """Counts of a load: requests, failed, by configuration, and the errors seen."""
    configs = sorted({a.config for a in answers if a.config is not None})
    return {
        "requests": len(answers),
        "failed": sum(bool(a.error) for a in answers),
        "by_config": {name: sum(a.config == name and not a.error for a in answers) for name in configs},
        "errors": sorted({a.error for a in answers if a.error})[:5],
    }


def sha256_of(answers: Sequence[Answer]) -> str:
    """Over the token ids of the answers in order of their requests."""
    from counterproof.record import canonical

    ordered = sorted(answers, key=lambda answer: answer.index)
    return canonical.sha256_json([[a.index, list(a.token_ids)] for a in ordered])


def _no_text(_: Sequence[int]) -> str:
    raise ExecutionError("prompts go as token ids here")


def parse_ready(line: str) -> dict[str, Any] | None:
    """The line of JSON that a server prints when it takes requests; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "port" in found else None
