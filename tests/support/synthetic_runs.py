"""One synthetic run: the tables of an imagined engine with known step times, from a seed.

A closed loop of `concurrency` slots feeds requests to an engine that steps all running requests together. A
step takes prefill or decode time (scaled for the candidate), times the run's and the step's noise, plus the
injected delay. Everything else (stages, gauges, counters) follows from those steps exactly.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MS = 1_000_000
KV_BYTES_PER_TOKEN = 23_040
BLOCK_TOKENS = 16
WEIGHT_BYTES = 269_000_000


@dataclass(frozen=True)
class RunModel:
    """What one run is made of. Times in milliseconds; `speed` scales compute time (0.5 = twice as fast)."""

    arm: str
    seed: int
    workload_seed: int
    requests: int = 12
    concurrency: int = 1
    prompt_tokens: int = 48
    new_tokens: int = 24
    prefill_ms: float = 30.0
    decode_ms: float = 20.0
    overhead_ms: float = 0.5
    prefill_speed: float = 1.0
    decode_speed: float = 1.0
    run_sd: float = 0.01
    step_sd: float = 0.02
    delay_us: int = 0
    kv_cache: bool = False
    failures: int = 0
    kept_tokens: float = 1.0
    marked_requests: int = 0  # requests whose last-but-one token has margin `marked_margin`
    marked_margin: float = 4.0
    marked_differ: bool = False  # and, in this arm, another token there
    hidden_queue_ms: float = 0.0
    gauge_factor: float = 1.0
    nan_times: bool = False
    cached_tokens: int = 0
    client_late_us: int | None = None  # the client was a server's, and its requests left so late


@dataclass
class RunTables:
    """Rows of the four tables, the outputs, the events and the counters of one run."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)


@dataclass
class _Live:
    index: int
    prompt: list[int]
    tokens: list[int]
    margins: list[float]
    scheduled: int
    sent: int
    started: int = 0
    times: list[int] = field(default_factory=list)
    computed: int = 0


def prompt_of(workload_seed: int, index: int, length: int) -> list[int]:
    """The token ids of request `index`: the same for every arm of a block."""
    rng = np.random.default_rng([workload_seed, index, 1])
    return [int(t) for t in rng.integers(3, 500, max(2, length + int(rng.integers(-4, 5))))]


def token_sha256(ids: list[int]) -> str:
    """sha256 over the ids as little-endian int32."""
    return hashlib.sha256(np.asarray(ids, dtype="<i4").tobytes()).hexdigest()


def simulate(model: RunModel) -> RunTables:
    """Play the run. Deterministic in `model`."""
    rng = np.random.default_rng([model.seed, 7])
    run_noise = float(np.exp(rng.normal(0.0, model.run_sd)))
    tables = RunTables()
    now = 1_000_000_000_000 + model.seed % 1000 * MS
    first = now
    waiting = list(range(model.requests))
    live: list[_Live] = []
    step = 0
    while waiting or live:
        while waiting and len(live) < model.concurrency:
            live.append(_admit(model, waiting.pop(0), now))
        prefill = any(not r.times for r in live)
        compute = model.prefill_ms * model.prefill_speed if prefill else model.decode_ms * model.decode_speed
        noise = run_noise * float(np.exp(rng.normal(0.0, model.step_sd)))
        compute_ns = int(compute * noise * MS)
        now = _play_step(model, tables, live, step, now, compute_ns)
        step += 1
        for request in [r for r in live if len(r.times) == len(r.tokens)]:
            live.remove(request)
            _finish(model, tables, request, now)
    _sample_process(model, tables, first, now)
    tables.counters.update(_count(model, tables, step))
    if model.client_late_us is not None:
        late = dict.fromkeys(("late_p50_us", "late_p90_us", "late_p99_us"), float(model.client_late_us))
        client = {"mode": "open", "remote": False, "requests": model.requests, "cpu_share": None, **late}
        tables.events.append({"time_ns": now, "kind": "client", **client})
    if model.nan_times:
        for row in tables.requests:
            row["first_token_ns"] = row["last_token_ns"] = None
        tables.tokens.clear()
    return tables


def _admit(model: RunModel, index: int, now: int) -> _Live:
    prompt = prompt_of(model.workload_seed, index, model.prompt_tokens)
    rng = np.random.default_rng([model.workload_seed, index, 2])
    wanted = max(1, round(model.new_tokens * model.kept_tokens))
    ids = [int(t) for t in rng.integers(3, 500, model.new_tokens)]
    margins = [float(m) for m in rng.uniform(1.0, 6.0, model.new_tokens)]
    if index < model.marked_requests and model.new_tokens > 2:
        ids[-2] = 501 if model.marked_differ else 500
        margins[-2] = model.marked_margin
    return _Live(
        index=index,
        prompt=prompt,
        tokens=ids[:wanted],
        margins=margins[:wanted],
        scheduled=now,
        sent=now + int(model.hidden_queue_ms * MS) + 20_000,
    )


def _play_step(
    model: RunModel, tables: RunTables, live: list[_Live], step: int, now: int, compute_ns: int
) -> int:
    """Advance every live request by one token; returns the time after the step."""
    overhead = int(model.overhead_ms * MS)
    begin = max(now, max(r.sent for r in live)) + 30_000
    _gauge(model, tables, live, begin)
    after_compute = begin + overhead // 2 + compute_ns
    end = after_compute + overhead // 2 + model.delay_us * 1000
    work = {r.index: _step_tokens(model, r) for r in live}
    total = sum(work.values())
    for request in live:
        phase = "decode" if request.times else "prefill"
        if phase == "prefill":
            request.started = begin
            _stage(
                tables, None, request.index, "input", "tokenize", request.sent, 30_000, len(request.prompt)
            )
            queue = begin - request.sent - 30_000
            _stage(tables, step, request.index, "input", "queue", request.sent + 30_000, queue, 0)
        n = work[request.index]
        half = overhead // 2
        part = n / total
        _stage(tables, step, request.index, "state", "allocate", begin, half, n, part)
        _stage(tables, step, request.index, "compute", phase, begin + half, compute_ns, n, part)
        _stage(tables, step, request.index, "output", "sample", after_compute, half, 1, part)
        request.computed += n
        request.times.append(end)
        row = {
            "request_index": request.index,
            "token_index": len(request.times) - 1,
            "token_id": request.tokens[len(request.times) - 1],
            "time_ns": end,
            "logprob": -0.5,
            "margin": request.margins[len(request.times) - 1],
        }
        tables.tokens.append(row)
    if all(len(r.times) == len(r.tokens) for r in live):
        _gauge(model, tables, [], end)
    return end


def _step_tokens(model: RunModel, request: _Live) -> int:
    if not request.times:
        return len(request.prompt)
    return 1 if model.kv_cache else len(request.prompt) + len(request.times)


def _stage(
    tables: RunTables,
    step: int | None,
    index: int,
    stage: str,
    phase: str,
    start: int,
    wall: int,
    tokens: int,
    part: float = 1.0,
) -> None:
    tables.stages.append(
        {
            "step": step,
            "request_index": index,
            "stage": stage,
            "phase": phase,
            "start_ns": start,
            "wall_ns": wall,
            "share_ns": int(wall * part),
            "tokens": tokens,
            "bytes": tokens * 64,
            "flops": tokens * 1000 if stage == "compute" else 0,
        }
    )


def _gauge(model: RunModel, tables: RunTables, live: list[_Live], time_ns: int) -> None:
    """A gauge row as the engine writes it: when a step is planned, and when it falls idle."""
    used = 0
    if model.kv_cache:
        used = sum(-(-(len(r.prompt) + len(r.times)) // BLOCK_TOKENS) for r in live)
    tables.resources.append(
        {
            "time_ns": time_ns,
            "source": "engine",
            "running": round(len(live) * model.gauge_factor),
            "waiting": 0,
            "kv_blocks_used": used,
            "kv_blocks_total": 256 if model.kv_cache else 0,
            "kv_bytes_used": used * BLOCK_TOKENS * KV_BYTES_PER_TOKEN,
        }
    )


def _finish(model: RunModel, tables: RunTables, request: _Live, now: int) -> None:
    failed = request.index < model.failures
    tables.requests.append(
        {
            "request_index": request.index,
            "prompt_tokens": len(request.prompt),
            "max_new_tokens": model.new_tokens,
            "output_tokens": 0 if failed else len(request.tokens),
            "scheduled_ns": request.scheduled,
            "enqueued_ns": request.sent,
            "sent_ns": request.sent,
            "first_token_ns": None if failed else request.times[0],
            "last_token_ns": None if failed else request.times[-1],
            "done_ns": now,
            "status": "error" if failed else "ok",
            "finish_reason": "error" if failed else "length",
            "error": "kv_capacity" if failed else None,
            "tokens_computed": request.computed,
            "cached_tokens": model.cached_tokens,
            "prompt_sha256": token_sha256(request.prompt),
            "output_sha256": token_sha256([] if failed else request.tokens),
        }
    )
    ids = [] if failed else request.tokens
    text = " ".join(f"t{i}" for i in ids)
    tables.outputs.append({"request_index": request.index, "token_ids": ids, "text": text})
    if failed:
        tables.tokens[:] = [t for t in tables.tokens if t["request_index"] != request.index]
        tables.events.append({"time_ns": now, "kind": "rejected", "request_index": request.index})


def _sample_process(model: RunModel, tables: RunTables, first: int, last: int) -> None:
    """The outside sampler's rows, every 50 ms."""
    rng = np.random.default_rng([model.seed, 9])
    for i, time_ns in enumerate(range(first, last, 50 * MS)):
        tables.resources.append(
            {
                "time_ns": time_ns,
                "source": "sampler",
                "rss_bytes": 600_000_000
                + int(rng.integers(0, 2_000_000))
                + (6_000_000 if model.kv_cache else 0),
                "cpu_seconds": 0.09 * i,
                "threads": 4,
                "load1": 1.1,
                "cpu_mhz": 3700.0,
            }
        )


def _count(model: RunModel, tables: RunTables, steps: int) -> dict[str, int]:
    computed = sum(r["tokens_computed"] for r in tables.requests)
    prefill = sum(r["prompt_tokens"] for r in tables.requests)
    finished = sum(r["status"] == "ok" for r in tables.requests)
    return {
        "tokens_computed": computed,
        "tokens_generated": sum(r["output_tokens"] for r in tables.requests),
        "steps": steps,
        "prefill_tokens": prefill,
        "decode_tokens": computed - prefill,
        "blocks_allocated": 4 * len(tables.requests) if model.kv_cache else 0,
        "blocks_freed": 4 * len(tables.requests) if model.kv_cache else 0,
        "kv_bytes_written": computed * KV_BYTES_PER_TOKEN if model.kv_cache else 0,
        "kv_bytes_read": 20 * computed * KV_BYTES_PER_TOKEN if model.kv_cache else 0,
        "preemptions": 0,
        "requests_admitted": len(tables.requests),
        "requests_finished": finished,
        "requests_rejected": len(tables.requests) - finished,
        "requests_aborted": 0,
    }
