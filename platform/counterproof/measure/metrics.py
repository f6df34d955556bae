"""The metrics by name, their units and directions, and the value of one metric in one run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterproof.measure.latency import COLUMNS, NS_PER_MS, sample_of
from counterproof.measure.load import RunData
from counterproof.measure.percentile import PERCENTILES, Measured, percentile
from counterproof.measure.setup import setup_ms

QUANTILES = ("p50", "p90", "p99", "mean")
_OTHER_CLOCK = {
    "itl_ms": "a server's answer comes in chunks, not in tokens: see inter_chunk_ms",
    "inter_chunk_ms": "the engine stamps every token: see itl_ms",
}


@dataclass(frozen=True)
class Metric:
    """`better`: lower, higher, or equal (a difference either way is no gain). `statistics`: default first."""

    unit: str
    better: str
    statistics: tuple[str, ...]


METRICS: dict[str, Metric] = {
    "e2e_ms": Metric("ms", "lower", QUANTILES),
    "ttft_ms": Metric("ms", "lower", QUANTILES),
    "tpot_ms": Metric("ms", "lower", QUANTILES),
    "itl_ms": Metric("ms", "lower", QUANTILES),
    "inter_chunk_ms": Metric("ms", "lower", QUANTILES),
    "service_ms": Metric("ms", "lower", QUANTILES),
    "client_queue_ms": Metric("ms", "lower", ("p50", "mean")),
    "throughput_tok_s": Metric("tokens/s", "higher", ("total",)),
    "throughput_setup_tok_s": Metric("tokens/s", "higher", ("total",)),
    "output_tokens": Metric("tokens", "equal", ("total",)),
    "error_rate": Metric("fraction", "lower", ("mean",)),
    "startup_ms": Metric("ms", "lower", ("total",)),
    "setup_ms": Metric("ms", "lower", ("total",)),
    "peak_rss_bytes": Metric("bytes", "lower", ("peak",)),
    "peak_gpu_allocated_bytes": Metric("bytes", "lower", ("peak",)),
    "peak_gpu_reserved_bytes": Metric("bytes", "lower", ("peak",)),
    "peak_gpu_used_bytes": Metric("bytes", "lower", ("peak",)),
    "kv_bytes_peak": Metric("bytes", "lower", ("peak",)),
    "kv_bytes_kept": Metric("bytes", "lower", ("peak",)),
    "weight_bytes": Metric("bytes", "lower", ("total",)),
    "tokens_computed": Metric("tokens", "lower", ("total",)),
}


def run_value(run: RunData, metric: str, statistic: str) -> Measured:
    """The metric's statistic in one run; None with a reason where it cannot be had."""
    if (metric == "itl_ms" and run.remote) or (metric == "inter_chunk_ms" and not run.remote):
        return Measured(None, 0, _OTHER_CLOCK[metric])
    if metric in COLUMNS or metric in _OTHER_CLOCK:
        return summarise(run_samples(run, metric), statistic)
    if metric in _WHOLE_RUN:
        return _WHOLE_RUN[metric](run)
    return Measured(None, 0, f"unknown metric {metric}")


def run_samples(run: RunData, metric: str) -> NDArray[np.float64]:
    """The sample behind a latency metric, in ms (+inf: failed, NaN: missing)."""
    if metric == "itl_ms":
        return run.token_gaps
    if metric == "inter_chunk_ms":
        return run.chunk_gaps
    return sample_of(run.latencies, metric)


def summarise(sample: NDArray[np.float64], statistic: str) -> Measured:
    """A percentile by name, or the mean, of a sample."""
    if statistic in PERCENTILES:
        return percentile(sample, PERCENTILES[statistic])
    if statistic != "mean":
        return Measured(None, int(sample.size), f"unknown statistic {statistic}")
    n = int(sample.size)
    if n == 0 or np.isnan(sample).any():
        return Measured(
            None, n, "no samples" if n == 0 else f"{int(np.isnan(sample).sum())} samples are missing"
        )
    if np.isinf(sample).any():
        return Measured(None, n, f"unbounded: {int(np.isinf(sample).sum())} of {n} requests failed")
    return Measured(float(sample.mean()), n)


def _throughput(run: RunData, before_ms: float = 0.0) -> Measured:
    requests = run.requests
    ok = requests[requests["status"] == "ok"]
    n = len(ok)
    if n == 0:
        return Measured(None, 0, "no request succeeded")
    load_ms = float(requests["done_ns"].max() - requests["scheduled_ns"].min()) / NS_PER_MS
    elapsed = (before_ms + load_ms) / 1000
    if not math.isfinite(elapsed) or elapsed <= 0:
        return Measured(None, n, "the run has no duration")
    return Measured(float(ok["output_tokens"].sum()) / elapsed, n)


def _output_tokens(run: RunData) -> Measured:
    return Measured(float(run.requests["output_tokens"].fillna(0).sum()), len(run.requests))


def _error_rate(run: RunData) -> Measured:
    n = len(run.requests)
    if n == 0:
        return Measured(None, 0, "no requests")
    return Measured(float((run.requests["status"] != "ok").sum()) / n, n)


def _startup(run: RunData) -> Measured:
    return _number(run.manifest.get("startup_ms"), "the record has no start-up time")


def _peak(column: str, source: str) -> Callable[[RunData], Measured]:
    def value(run: RunData) -> Measured:
        if run.remote and source == "engine":
            return Measured(
                None, 0, f"{column} is seen a few times a second over HTTP: its peak is not known"
            )
        rows = run.resources
        sample = rows.loc[rows["source"] == source, column].dropna()
        if sample.empty:
            return Measured(None, 0, f"the {source} recorded no {column}")
        return Measured(float(sample.max()), len(sample))

    return value


def _weights(run: RunData) -> Measured:
    return _number(run.effective.get("model.weight_bytes"), "the engine does not report its weight bytes")


def _kept(run: RunData) -> Measured:
    """KV bytes that were still held when no request was there any more, warm-up included: what caches keep."""
    timed, warm = (
        found.get("kv_bytes_kept") for found in (run.counters, run.manifest.get("warmup_counters", {}))
    )
    if timed is None or warm is None:
        return Measured(None, 0, "the engine does not say what it keeps between requests")
    return _number(timed + warm, "")


def _computed(run: RunData) -> Measured:
    return _number(run.counters.get("tokens_computed"), "the engine does not count computed tokens")


def _number(value: Any, reason: str) -> Measured:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return Measured(None, 0, reason)
    return Measured(float(value), 1)


_WHOLE_RUN: dict[str, Callable[[RunData], Measured]] = {
    "throughput_tok_s": _throughput,
    "throughput_setup_tok_s": lambda run: _throughput(run, setup_ms(run)),
    "output_tokens": _output_tokens,
    "error_rate": _error_rate,
    "startup_ms": _startup,
    "setup_ms": lambda run: Measured(setup_ms(run), 1),
    "peak_rss_bytes": _peak("rss_bytes", "sampler"),
    "peak_gpu_allocated_bytes": _peak("gpu_allocated_bytes", "engine"),
    "peak_gpu_reserved_bytes": _peak("gpu_reserved_bytes", "engine"),
    "peak_gpu_used_bytes": _peak("gpu_used_bytes", "sampler"),
    "kv_bytes_peak": _peak("kv_bytes_used", "engine"),
    "kv_bytes_kept": _kept,
    "weight_bytes": _weights,
    "tokens_computed": _computed,
}
