"""The open loop: the schedule by a virtual clock, in-process engines, no hidden queue, what the client itself cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from counterproof.errors import InputError
from counterproof.run import client_load
from counterproof.run.open_loop import OpenLoop
from counterproof.run.targets.protocol import Output, Readings, Token
from counterproof.workload.arrivals import arrivals
from counterproof.workload.sealed import SealedRequest

MS = 1_000_000


class VirtualClock:
    """A time that passes only when somebody waits or works."""

    def __init__(self) -> None:
        self.time = 1_000 * MS
        self.slept = 0

    def now_ns(self) -> int:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.time += max(1, round(seconds * 1e9))


class StepEngine:
    """An engine in this process whose every step takes `step_ns` and gives each request one token."""

    def __init__(self, clock: VirtualClock, step_ns: int) -> None:
        self.clock, self.step_ns = clock, step_ns
        self.live: dict[str, list[int]] = {}
        self.wanted: dict[str, int] = {}

    def add(self, request_id: str, request: SealedRequest) -> None:
        self.live[request_id], self.wanted[request_id] = [], request.max_new_tokens

    def step(self) -> list[Token]:
        self.clock.time += self.step_ns
        tokens = []
        for request_id, ids in self.live.items():
            ids.append(len(ids))
            end = "length" if len(ids) == self.wanted[request_id] else None
            tokens.append(Token(request_id, len(ids) - 1, 1, self.clock.time, finish_reason=end))
        return tokens

    def output(self, request_id: str) -> Output:
        ids = tuple(self.live.pop(request_id))
        return Output(request_id, ids, "", "length", self.clock.time, len(ids), 0)

    def abort(self, request_id: str) -> None:
        raise AssertionError("nothing is late here")

    def drain(self) -> Readings:
        return Readings()


def at(*times_ms: float, tokens: int = 2) -> list[SealedRequest]:
    return [
        SealedRequest(i, (i + 1, 2), tokens, seed=i, arrival_ns=round(time * MS))
        for i, time in enumerate(times_ms)
    ]


def run(work: list[SealedRequest], step_ms: float) -> tuple[OpenLoop, list[dict[str, Any]], VirtualClock]:
    clock = VirtualClock()
    loop = OpenLoop(StepEngine(clock, round(step_ms * MS)), work, 60.0, clock=clock)  # type: ignore[arg-type]
    return loop, loop.run().requests, clock


def test_requests_are_scheduled_at_their_times_whatever_the_engine_does() -> None:
    loop, rows, clock = run(at(0, 10, 500, 501), 4.0)
    start = rows[0]["scheduled_ns"]
    assert [row["scheduled_ns"] - start for row in rows] == [0, 10 * MS, 500 * MS, 501 * MS]
    # The second is handed over at 10 ms, when the engine is idle; the fourth waits for the third's step.
    assert [row["sent_ns"] - start for row in rows] == [0, 10 * MS, 500 * MS, 504 * MS]
    assert clock.slept > 0
    # That wait is the engine's: the client itself was never late.
    assert loop.late_ns == [0, 0, 0, 0]


def test_a_slow_engine_never_holds_the_next_request_back() -> None:
    """No slots: ten requests a second at an engine that takes half a second each are all under way at once, and
    their latencies count the queue (a limit on requests under way would show 500 ms for each)."""
    _, rows, _ = run(at(*(100.0 * i for i in range(20)), tokens=1), 500.0)
    waits = [(row["done_ns"] - row["scheduled_ns"]) / MS for row in rows]
    assert max(waits) >= 900
    assert all(row["status"] == "ok" for row in rows)


def test_arrivals_must_all_be_there_and_in_order() -> None:
    mixed = [*at(0), dataclasses.replace(at(0, 5)[1], arrival_ns=None)]
    with pytest.raises(InputError, match="request 1 has no arrival time"):
        run(mixed, 1.0)
    with pytest.raises(InputError, match="run backwards"):
        run(at(5, 1), 1.0)


def test_lateness_takes_upper_order_statistics() -> None:
    found = client_load.lateness([i * 1000 for i in range(1, 101)])
    assert found == {"late_p50_us": 50.0, "late_p90_us": 90.0, "late_p99_us": 99.0, "late_max_us": 100.0}
    assert client_load.lateness([])["late_p99_us"] is None


def test_the_client_keeps_a_schedule_of_a_thousand_requests_a_second(null_target: Callable[..., Any]) -> None:
    """The bound is wide, since tests share their machine; benchmarks/client_schedule.py measures the real one."""
    times = arrivals("poisson", 1_500, rate_per_s=1_000.0, cv=1.0, seed="s")
    work = [SealedRequest(i, tuple(range(2, 66)), 1, seed=i, arrival_ns=times[i]) for i in range(1_500)]
    target = null_target()
    client_load.run(target, work[:20], 1, 20.0)
    rows, client = client_load.run(target, work, 1, 20.0)
    assert {row["status"] for row in rows.requests} == {"ok"}
    assert (client["mode"], client["requests"], client["stated_tokens"]) == ("open", 1_500, 1_500)
    assert client["late_p50_us"] < 10_000
    assert 0.0 < client["cpu_share"] < 0.9
    assert client["lag_p99_us"] is not None
    assert client["connections"] < 500


def test_a_queue_at_the_server_shows_in_the_latency_from_the_schedule(
    null_target: Callable[..., Any],
) -> None:
    """A server that needs half a second, ten requests a second: no semaphore of the client's stands before it."""
    work = at(*(100.0 * i for i in range(8)), tokens=1)
    rows, client = client_load.run(null_target("--delay-s", "0.5"), work, 1, 20.0)
    for row in rows.requests:
        assert 500 <= (row["done_ns"] - row["scheduled_ns"]) / MS < 1_500
    assert client["connections"] >= 4


def test_a_closed_loop_over_http_keeps_its_slots(null_target: Callable[..., Any]) -> None:
    work = [SealedRequest(i, (1, 2, 3), 2, seed=i) for i in range(9)]
    rows, client = client_load.run(null_target("--gap-s", "0.01"), work, 3, 20.0)
    assert (client["mode"], client["connections"], client["reconnects"]) == ("closed", 3, 0)
    assert client["late_p99_us"] is None
    assert len(rows.chunks) == 18
    edges = sorted([(r["sent_ns"], 1) for r in rows.requests] + [(r["done_ns"], -1) for r in rows.requests])
    present = most = 0
    for _, change in edges:
        present += change
        most = max(most, present)
    assert most == 3
