"""An open loop: every request is sent when its time has come, however many are under way.

There are no slots: a limit on requests under way would hold back what a slow server should see, and hide its queue
(coordinated omission). Latencies run from the scheduled moment. A target in this process takes requests between its
steps; what passes from the moment to the end of the step is the engine's time and no lateness of the client's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from counterproof.errors import InputError
from counterproof.run.closed_loop import DRAIN_STEPS, ClosedLoop, LoadRows
from counterproof.run.targets.protocol import Target
from counterproof.workload.sealed import SealedRequest

LONGEST_WAIT_S = 0.05


class Clock(Protocol):
    """The time, and waiting for it."""

    def now_ns(self) -> int: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of all stamps."""

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class OpenLoop(ClosedLoop):
    """Sends `requests` at their `arrival_ns`. Raises InputError when one has none, or they run backwards."""

    def __init__(
        self,
        target: Target,
        requests: Sequence[SealedRequest],
        timeout_s: float,
        on_done: Callable[[int], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(target, requests, 1, timeout_s, on_done)
        self._clock = clock or SystemClock()
        self._now = self._clock.now_ns
        self._arrivals = [_arrival(request) for request in requests]
        if self._arrivals != sorted(self._arrivals):
            raise InputError("the workload's arrival times run backwards")

    def run(self) -> LoadRows:
        """Send everything on time and wait for the end. Whatever the target raises goes through."""
        self._begin()
        start = self._clock.now_ns()
        free_ns = start
        number = steps = 0
        while self._waiting or self._live:
            while self._waiting:
                due = start + self._arrivals[number]
                now = self._clock.now_ns()
                if now < due:
                    break
                self.late_ns.append(now - max(due, free_ns))
                self._send(self._waiting.popleft(), due)
                number += 1
            wait_s = self._wait_s(start, number)
            self._abort_late()
            if self._remote is not None:
                tokens = self._remote.step_within(wait_s)
            elif self._live:
                tokens = self._target.step()
                free_ns = self._clock.now_ns()
            else:
                self._clock.sleep(wait_s)
                continue
            for token in tokens:
                self._take(token)
            steps += 1
            if steps % DRAIN_STEPS == 0:
                self._drain()
        return self._end()

    def _wait_s(self, start: int, number: int) -> float:
        """Until the next request's moment, and never so long that a time-out would be missed."""
        if not self._waiting:
            return LONGEST_WAIT_S
        left = start + self._arrivals[number] - self._clock.now_ns()
        return min(LONGEST_WAIT_S, max(0.0, left / 1e9))


def _arrival(request: SealedRequest) -> int:
    if request.arrival_ns is None:
        raise InputError(f"request {request.request_index} has no arrival time, others have one")
    return request.arrival_ns
