"""The timed load: a closed or an open loop, and what it cost the client itself."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from counterproof.run.closed_loop import ClosedLoop, LoadRows
from counterproof.run.open_loop import OpenLoop
from counterproof.run.targets.protocol import RemoteTarget, Target
from counterproof.workload.sealed import SealedRequest

CLIENT = "client"


def run(
    target: Target,
    requests: Sequence[SealedRequest],
    concurrency: int,
    timeout_s: float,
    on_done: Callable[[int], None] | None = None,
) -> tuple[LoadRows, dict[str, Any]]:
    """Send the requests as they are sealed: with arrival times in an open loop, without in a closed one.

    Returns the rows and one event of kind `client`: how late requests left, what share of a core the client took
    (a server's client only: in the engine's own process the two cannot be told apart), its connections and counts.
    """
    open_loop = any(request.arrival_ns is not None for request in requests)
    loop = (
        OpenLoop(target, requests, timeout_s, on_done)
        if open_loop
        else ClosedLoop(target, requests, concurrency, timeout_s, on_done)
    )
    if isinstance(target, RemoteTarget):
        target.prepare(requests)
        with _no_collections():
            rows = loop.run()
    else:
        rows = loop.run()
    event: dict[str, Any] = {
        "time_ns": time.perf_counter_ns(),
        "kind": CLIENT,
        "mode": "open" if open_loop else "closed",
        "requests": len(rows.requests),
        **lateness(loop.late_ns),
    }
    if isinstance(target, RemoteTarget):
        event |= {"remote": True, "cpu_share": loop.cpu_ns / loop.wall_ns, **target.client_facts()}
    else:
        reason = "the engine runs in the client's process"
        event |= {"remote": False, "cpu_share": None, "cpu_share_reason": reason}
    return rows, event


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """A collection would hold the client up for milliseconds; what it keeps of a run has no cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def lateness(late_ns: Sequence[int]) -> dict[str, Any]:
    """How late requests left, in microseconds: percentiles (upper order statistics) and the maximum."""
    ordered = sorted(late_ns)
    if not ordered:
        return dict.fromkeys(("late_p50_us", "late_p90_us", "late_p99_us", "late_max_us"))
    found = {f"late_p{p}_us": ordered[-(-p * len(ordered) // 100) - 1] / 1e3 for p in (50, 90, 99)}
    return {**found, "late_max_us": ordered[-1] / 1e3}
