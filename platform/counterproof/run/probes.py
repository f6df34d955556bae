"""A probe run: one arm, one fresh process, and everything that could overturn the study's result.

Prompts sent twice (a hidden cache answers the second sooner), the load of a held-out seed, the tokens at which a text
ends, and the abnormal inputs. Judged by measure/probes.py; the idea of the first is MLPerf's audit test TEST04.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from counterproof.run import abnormal as abnormal_inputs
from counterproof.run import client_load
from counterproof.run.closed_loop import LoadRows, index_of
from counterproof.run.driver import Driver
from counterproof.run.targets.protocol import Target
from counterproof.workload.sealed import SealedRequest

DUPLICATE = "duplicate_prompt"
END_TOKENS = "end_tokens"


@runtime_checkable
class NamesItsEnd(Protocol):
    """A target that knows at which tokens a text ends."""

    def end_token_ids(self) -> tuple[int, ...]:
        """The model's end-of-sequence tokens."""


@dataclass(frozen=True)
class Load:
    """What a probe run sends."""

    requests: Sequence[SealedRequest]
    warmup: Sequence[SealedRequest]
    duplicates: Sequence[SealedRequest]
    concurrency: int
    timeout_s: float


@dataclass(frozen=True)
class Found:
    """Rows and counters of the held-out load; `before`: counters when it began."""

    rows: LoadRows
    events: list[dict[str, Any]]
    counters: dict[str, int]
    before: dict[str, int]
    abnormal: list[dict[str, Any]]


def run(target: Target, load: Load, on_done: Callable[[int], None], *, abnormal: bool) -> Found:
    """Probe a target that has answered nothing yet."""
    client_load.warm_up(target, load.warmup, load.concurrency, load.timeout_s)
    events = duplicates(target, load.duplicates, load.timeout_s)
    events += _events(target)
    before = target.counters()
    rows, client = client_load.run(target, load.requests, load.concurrency, load.timeout_s, on_done)
    counters = {name: value - before.get(name, 0) for name, value in target.counters().items()}
    events += [client, _end_tokens(target)]
    inputs = []
    if abnormal:
        inputs = abnormal_inputs.run(target, load.duplicates[0], load.concurrency, load.timeout_s)
        events += _events(target)
    return Found(rows, events, counters, before, inputs)


def duplicates(target: Target, requests: Sequence[SealedRequest], timeout_s: float) -> list[dict[str, Any]]:
    """Send each request twice, alone, and tell how the second answer came about beside the first."""
    driver = Driver(target, timeout_s)
    events = []
    for request in requests:
        pair = []
        for _ in range(2):
            track = driver.send(request)
            driver.finish(track)
            pair.append(track)
        driver.cancel_all()
        first, second = pair
        event: dict[str, Any] = {
            "time_ns": time.perf_counter_ns(),
            "kind": DUPLICATE,
            "prompt_tokens": len(request.token_ids),
            "equal": first.answer == second.answer,
            "failed": first.reason not in ("stop", "length") or second.reason not in ("stop", "length"),
        }
        for name, track in (("first", first), ("second", second)):
            output = track.output
            event[f"ttft_{name}_ms"] = track.ttft_ms
            event[f"computed_{name}"] = None if output is None else output.tokens_computed
            event[f"cached_{name}"] = None if output is None else output.cached_tokens
        events.append(event)
    return events


def _end_tokens(target: Target) -> dict[str, Any]:
    known = list(target.end_token_ids()) if isinstance(target, NamesItsEnd) else None
    return {"time_ns": time.perf_counter_ns(), "kind": END_TOKENS, "token_ids": known}


def _events(target: Target) -> list[dict[str, Any]]:
    """What the target noted meanwhile, by the harness's own numbers of requests."""
    events = target.drain().events
    for event in events:
        if (request_id := event.pop("request_id", None)) is not None:
            event["request_index"] = index_of(request_id)
    return events
