"""Counters, gauges and events of an engine: what was done, what is held, and what went another way than usual."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

COUNTERS = (
    "steps",
    "tokens_computed",
    "tokens_generated",
    "prefill_tokens",
    "decode_tokens",
    "tokens_recomputed",
    "tokens_discarded",
    "blocks_allocated",
    "blocks_freed",
    "kv_bytes_written",
    "kv_bytes_read",
    "kv_bytes_kept",
    "flops",
    "preemptions",
    "prefix_lookup_tokens",
    "prefix_hit_tokens",
    "prefix_hit_blocks",
    "prefix_evicted_blocks",
    "prefix_cross_tenant_evictions",
    "prefix_deferrals",
    "prefix_key_collisions",
    "prefix_quota_refusals",
    "prefix_stale_blocks",
    "swap_out_blocks",
    "swap_in_blocks",
    "swap_bytes",
    "swap_failures",
    "context_hit_tokens",
    "context_loads",
    "context_load_bytes",
    "context_load_failures",
    "context_evictions",
    "contexts_created",
    "requests_admitted",
    "requests_rejected",
    "requests_finished",
    "requests_aborted",
    "requests_failed",
    "step_failures",
    "injected_ns",
    "events_dropped",
    "gauges_dropped",
    "outputs_dropped",
    "trace_dropped",
)


class Counters:
    """Named whole numbers that only grow. Every name of COUNTERS exists from the start, at 0."""

    def __init__(self) -> None:
        self._values = dict.fromkeys(COUNTERS, 0)

    def add(self, name: str, amount: int = 1) -> None:
        """Raise a counter. Raises KeyError for a name that is not in COUNTERS."""
        self._values[name] += amount

    def reach(self, name: str, value: int) -> None:
        """Raise a counter that is a high-water mark to `value`, unless it stands higher. Raises KeyError as `add`."""
        self._values[name] = max(self._values[name], value)

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def snapshot(self) -> dict[str, int]:
        """All counters now."""
        return dict(self._values)


class Telemetry:
    """The engine's counters and its bounded logs of events and gauges.

    A log that nobody drains keeps the newest entries; how many older ones were dropped is counted.
    """

    def __init__(self, *, limit: int = 100_000) -> None:
        self.counters = Counters()
        self._events: deque[dict[str, Any]] = deque(maxlen=limit)
        self._gauges: deque[tuple[int, dict[str, int]]] = deque(maxlen=limit)
        self._limit = limit

    def event(self, kind: str, **fields: Any) -> None:
        """Log something that happened, stamped now."""
        if len(self._events) == self._limit:
            self.counters.add("events_dropped")
        self._events.append({"time_ns": time.perf_counter_ns(), "kind": kind, **fields})

    def gauge(self, time_ns: int, values: dict[str, int]) -> None:
        """Log the gauges as they are at `time_ns`."""
        if len(self._gauges) == self._limit:
            self.counters.add("gauges_dropped")
        self._gauges.append((time_ns, values))

    def drain_events(self) -> list[dict[str, Any]]:
        """The events since the last call, oldest first."""
        drained = list(self._events)
        self._events.clear()
        return drained

    def drain_gauges(self) -> list[tuple[int, dict[str, int]]]:
        """The gauges since the last call, oldest first."""
        drained = list(self._gauges)
        self._gauges.clear()
        return drained
