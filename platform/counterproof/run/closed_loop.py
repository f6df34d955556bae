"""A closed loop: a fixed number of slots; a slot sends its next request when its last one is done."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from counterproof.run.targets.protocol import (
    Output,
    Readings,
    RefusedRequestError,
    RemoteTarget,
    Target,
    Token,
)
from counterproof.workload.sealed import SealedRequest

# Targets keep bounded logs; asking this often keeps them from dropping anything.
DRAIN_STEPS = 4096


@dataclass
class LoadRows:
    """Rows of requests.parquet, tokens.parquet and chunks.parquet, outputs, and what the target recorded meanwhile."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    readings: Readings = field(default_factory=Readings)


@dataclass
class _Live:
    request: SealedRequest
    scheduled_ns: int
    enqueued_ns: int
    sent_ns: int
    stamps: list[int] = field(default_factory=list)
    timed_out: bool = False


@dataclass(frozen=True)
class _Ended:
    """A finished request. Its rows are built after the load: hashing now would delay the next request."""

    live: _Live
    output: Output
    reason: str
    error: str | None
    done_ns: int


class ClosedLoop:
    """Sends `requests` through `target` with `concurrency` slots. `on_done(n)` after each finished request.

    late_ns          how late the client itself was with each request; nothing in a closed loop, where no moment is set
    wall_ns, cpu_ns  how long the load took, and this process's CPU time meanwhile
    """

    def __init__(
        self,
        target: Target,
        requests: Sequence[SealedRequest],
        concurrency: int,
        timeout_s: float,
        on_done: Callable[[int], None] | None = None,
    ) -> None:
        self._target = target
        self._waiting = deque(requests)
        self._slots = concurrency
        self._timeout_ns = int(timeout_s * 1e9)
        self._on_done = on_done
        self._live: dict[str, _Live] = {}
        self._ended: list[_Ended] = []
        self._rows = LoadRows()
        self._remote = target if isinstance(target, RemoteTarget) else None
        self._now: Callable[[], int] = time.perf_counter_ns
        self.late_ns: list[int] = []
        self.wall_ns = self.cpu_ns = 0

    def run(self) -> LoadRows:
        """Send everything and wait for the end. Whatever the target raises goes through."""
        # A request is scheduled for the moment at which its slot became free, not when it could be sent.
        free = deque([self._now()] * self._slots)
        self._begin()
        steps = 0
        while self._waiting or self._live:
            while self._waiting and free:
                refused_ns = self._send(self._waiting.popleft(), free.popleft())
                if refused_ns is not None:
                    free.append(refused_ns)
            if self._live:
                self._abort_late()
                for token in self._target.step():
                    done_ns = self._take(token)
                    if done_ns is not None:
                        free.append(done_ns)
                steps += 1
                if steps % DRAIN_STEPS == 0:
                    self._drain()
        return self._end()

    def _begin(self) -> None:
        self.wall_ns, self.cpu_ns = -time.perf_counter_ns(), -time.process_time_ns()

    def _end(self) -> LoadRows:
        self.wall_ns += time.perf_counter_ns()
        self.cpu_ns += time.process_time_ns()
        self._drain()
        self._build_rows()
        return self._rows

    def _send(self, request: SealedRequest, scheduled_ns: int) -> int | None:
        """Hand a request over; if the target refuses it, record that and return when."""
        live = _Live(request, scheduled_ns, self._now(), 0)
        live.sent_ns = self._now()
        try:
            self._target.add(_id(request), request)
        except RefusedRequestError as error:
            done_ns = self._now()
            refused = Output(_id(request), (), "", "error", done_ns, 0, 0, str(error))
            self._finish(_Ended(live, refused, "error", str(error), done_ns))
            return done_ns
        self._live[_id(request)] = live
        return None

    def _take(self, token: Token) -> int | None:
        """Record a token; returns when the request was done if this was its end."""
        live = self._live.get(token.request_id)
        if live is None:
            return None
        if token.token_id is not None:
            live.stamps.append(token.time_ns)
            self._rows.tokens.append(
                {
                    "request_index": live.request.request_index,
                    "token_index": token.index,
                    "token_id": token.token_id,
                    "time_ns": token.time_ns,
                    "logprob": token.logprob,
                    "margin": token.margin,
                }
            )
        elif token.characters is not None:
            live.stamps.append(token.time_ns)
            self._rows.chunks.append(
                {
                    "request_index": live.request.request_index,
                    "chunk_index": token.index,
                    "time_ns": token.time_ns,
                    "characters": token.characters,
                    "tokens": token.tokens,
                }
            )
        if token.finish_reason is None:
            return None
        del self._live[token.request_id]
        output = self._target.output(token.request_id)
        done_ns = output.done_ns or self._now()
        error = output.error or token.error
        self._finish(_Ended(live, output, token.finish_reason, error, done_ns))
        return done_ns

    def _finish(self, ended: _Ended) -> None:
        self._ended.append(ended)
        if self._on_done is not None:
            self._on_done(len(self._ended))

    def _build_rows(self) -> None:
        self._ended.sort(key=lambda ended: ended.live.request.request_index)
        for ended in self._ended:
            live, output = ended.live, ended.output
            if self._remote is not None:
                output = self._remote.complete(live.request, output)
            row = request_row(live.request, output.token_ids, ended.reason, ended.error)
            if output.output_tokens is not None:
                row["output_tokens"] = output.output_tokens
            self._rows.requests.append(
                row
                | {
                    "scheduled_ns": live.scheduled_ns,
                    "enqueued_ns": live.enqueued_ns,
                    "sent_ns": output.sent_ns or live.sent_ns,
                    "first_token_ns": live.stamps[0] if live.stamps else None,
                    "last_token_ns": live.stamps[-1] if live.stamps else None,
                    "done_ns": ended.done_ns,
                    "status": request_status(ended.reason, live.timed_out),
                    "tokens_computed": output.tokens_computed,
                    "cached_tokens": output.cached_tokens,
                }
            )
            self._rows.outputs.append(output_row(live.request, output.token_ids, output.text, ended.reason))

    def _abort_late(self) -> None:
        """They stand in the order in which they were sent, so the first that is in time ends the search."""
        now = self._now()
        for request_id, live in self._live.items():
            if live.timed_out:
                continue
            if now - live.sent_ns <= self._timeout_ns:
                break
            live.timed_out = True
            self._target.abort(request_id)

    def _drain(self) -> None:
        readings = self._target.drain()
        for row in (*readings.stages, *readings.events):
            if (request_id := row.pop("request_id", None)) is not None:
                row["request_index"] = index_of(request_id)
        self._rows.readings.stages += readings.stages
        self._rows.readings.gauges += readings.gauges
        self._rows.readings.events += readings.events


def token_sha256(token_ids: Sequence[int]) -> str:
    """sha256 over token ids as little-endian int32."""
    return hashlib.sha256(b"".join(i.to_bytes(4, "little", signed=True) for i in token_ids)).hexdigest()


def index_of(request_id: str) -> int | None:
    """The request's place in the workload, None for an id that is not the harness's."""
    return int(request_id[1:]) if request_id[:1] == "r" and request_id[1:].isdigit() else None


def _id(request: SealedRequest) -> str:
    # Of equal width, so that an order by id is the order of the workload.
    return f"r{request.request_index:07d}"


def request_row(
    request: SealedRequest, token_ids: Sequence[int], reason: str | None, error: str | None
) -> dict[str, Any]:
    """The columns of requests.parquet that are no times and no counts of work."""
    return {
        "request_index": request.request_index,
        "prompt_tokens": len(request.token_ids),
        "max_new_tokens": request.max_new_tokens,
        "output_tokens": len(token_ids),
        "finish_reason": reason,
        "error": error,
        "prompt_sha256": token_sha256(request.token_ids),
        "output_sha256": token_sha256(token_ids),
    }


def output_row(
    request: SealedRequest, token_ids: Sequence[int], text: str, reason: str | None
) -> dict[str, Any]:
    """One line of outputs.jsonl."""
    return {
        "request_index": request.request_index,
        "token_ids": list(token_ids),
        "text": text,
        "finish_reason": reason,
    }


def request_status(reason: str | None, timed_out: bool = False) -> str:
    """ok, error, aborted or timeout, from how the request ended."""
    if timed_out:
        return "timeout"
    return {"stop": "ok", "length": "ok", "abort": "aborted"}.get(reason or "", "error")
