"""The timed load: what is set up for it, a closed or an open loop, and what it cost the client itself.

Documents that the target keeps are uploaded before the load, so that no request waits for them. That is work which
the load profits from: it is timed, its work stays in the run's counters, and it is recorded as an event `setup`.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from counterproof.run.closed_loop import ClosedLoop, LoadRows
from counterproof.run.open_loop import OpenLoop
from counterproof.run.targets.protocol import DocumentTarget, RemoteTarget, Target
from counterproof.workload.sealed import SealedRequest

CLIENT, SETUP = "client", "setup"


def run(
    target: Target,
    requests: Sequence[SealedRequest],
    concurrency: int,
    timeout_s: float,
    on_done: Callable[[int], None] | None = None,
) -> tuple[LoadRows, dict[str, Any]]:
    """Send the requests as they are sealed: with arrival times in an open loop, without in a closed one.

    Documents are uploaded before, which an event of kind `setup` among the rows' tells (see `set_up`). Returns the
    rows and one event of kind `client`: how late requests left, what share of a core the client took
    (a server's client only: in the engine's own process the two cannot be told apart), its connections and counts.
    """
    open_loop = any(request.arrival_ns is not None for request in requests)
    loop = (
        OpenLoop(target, requests, timeout_s, on_done)
        if open_loop
        else ClosedLoop(target, requests, concurrency, timeout_s, on_done)
    )
    prepared = set_up(target, requests)
    if isinstance(target, RemoteTarget):
        target.prepare(requests)
        with _no_collections():
            rows = loop.run()
    else:
        rows = loop.run()
    rows.readings.events += prepared
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


def warm_up(target: Target, requests: Sequence[SealedRequest], concurrency: int, timeout_s: float) -> None:
    """Send requests that nobody measures, in a closed loop, after the upload of their documents."""
    set_up(target, requests)
    ClosedLoop(target, requests, concurrency, timeout_s).run()


def set_up(target: Target, requests: Sequence[SealedRequest]) -> list[dict[str, Any]]:
    """Upload the load's documents to a target that keeps them.

    Returns one event of kind `setup`: `documents` that were uploaded, `ms` that it took, and `counters`, the
    target's work meanwhile; nothing where none had to be uploaded.
    """
    if not isinstance(target, DocumentTarget):
        return []
    before, begun = target.counters(), time.perf_counter_ns()
    documents = target.keep_documents(requests)
    now = time.perf_counter_ns()
    if not documents:
        return []
    work = {name: value - before.get(name, 0) for name, value in target.counters().items()}
    event = {"time_ns": now, "kind": SETUP, "documents": documents, "ms": (now - begun) / 1e6}
    return [{**event, "counters": {name: value for name, value in work.items() if value}}]


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
