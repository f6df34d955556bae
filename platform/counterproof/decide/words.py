"""Numbers and names in plain words, the same in the decision, the report and the Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_METRICS = {
    "e2e_ms": "end-to-end latency",
    "ttft_ms": "time to first token",
    "tpot_ms": "time per output token",
    "itl_ms": "gap between tokens",
    "service_ms": "service time",
    "client_queue_ms": "wait in the client",
    "throughput_tok_s": "output tokens per second",
    "throughput_setup_tok_s": "output tokens per second, set-up included",
    "output_tokens": "output tokens",
    "error_rate": "share of failed requests",
    "startup_ms": "start-up time",
    "setup_ms": "set-up before the load (documents uploaded)",
    "peak_rss_bytes": "peak resident memory",
    "peak_gpu_allocated_bytes": "peak device memory, allocated",
    "peak_gpu_reserved_bytes": "peak device memory, reserved",
    "peak_gpu_used_bytes": "peak device memory, in use by all",
    "kv_bytes_peak": "peak KV cache bytes",
    "kv_bytes_kept": "KV bytes kept while no request is there",
    "weight_bytes": "weight bytes",
    "tokens_computed": "computed tokens",
    "outputs": "outputs",
    "quality_kl_mean": "divergence from the baseline (KL, mean)",
    "quality_kl_p99": "divergence from the baseline (KL, p99)",
    "quality_top1": "agreement of the best token",
    "quality_max_dlogit": "largest change of a logit",
    "quality_ppl_ratio": "perplexity of held-out text over the baseline's",
    "quality_batch_dlogit": "change of a logit by the company of other requests",
}
_CHECKS = {
    "a_a": "A/A: again against baseline",
    "slowed_recovered": "injected delay recovered",
    "littles_law": "Little's law",
    "one_variable": "one variable",
    "arms_differ": "the flag acted",
    "output_length": "output length",
    "client_queue": "client queue",
    "samples": "samples complete",
    "clock": "clock",
    "workload": "same workload",
    "outputs": "outputs compared",
    "equivalence": "equivalence phase",
    "token_invariants": "token counts and end tokens",
    "cold_cache": "cold cache",
    "duplicate_prompts": "hidden cache: a prompt sent twice",
    "held_out_seed": "held-out seed",
    "sabotage": "sabotage: the feature off under the hood",
    "abnormal_inputs": "abnormal inputs",
}
_CELLS = {
    ("whole", "memory"): "resident memory",
    ("state", "memory"): "KV cache memory",
    ("state", "memory_kept"): "KV memory kept while no request is there",
    ("compute", "memory"): "weight memory",
    ("whole", "startup"): "start-up time",
    ("state", "startup"): "set-up before the load (documents uploaded)",
    ("whole", "time_p50"): "end-to-end time (p50)",
    ("whole", "time_p99"): "end-to-end time (p99)",
    ("state", "bytes_moved"): "KV bytes moved",
    ("output", "quality"): "outputs without a wrong token",
}
_PLAIN = ("total", "peak", "mean", "identical")
NONE = "not measured"


def metric_words(metric: str, statistic: str) -> str:
    """E.g. "time per output token (p50)"."""
    name = _METRICS.get(metric, metric)
    return name if statistic in _PLAIN else f"{name} ({statistic})"


def check_words(check: str) -> str:
    """A validity check's name for people."""
    return _CHECKS.get(check, check.replace("_", " "))


def cell_words(stage: str, resource: str) -> str:
    """A cell of the cost matrix for people."""
    plain = resource.replace("_p50", " (p50)").replace("_p99", " (p99)").replace("_", " ")
    return _CELLS.get((stage, resource), f"{stage} {plain}")


def number(value: float | None, unit: str | None = None) -> str:
    """A value with its unit, at a readable precision; "not measured" for none."""
    if value is None or not math.isfinite(value):
        return NONE
    if unit == "bytes":
        return byte_words(value)
    if unit == "fraction" or (unit or "").startswith("share"):
        return f"{100 * value:.3g} %"
    text = _digits(value)
    return f"{text} {unit}" if unit in ("ms", "tokens/s", "tokens", "s") else text


def byte_words(value: float) -> str:
    """Bytes in the binary unit that keeps them readable."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(value) >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


def change(ratio: float | None) -> str:
    """A ratio as a change, e.g. 0.49 -> "-51.0 %"; from threefold on as a factor."""
    if ratio is None or not math.isfinite(ratio):
        return NONE
    if ratio >= 3:
        return f"{_digits(ratio)} times"
    return f"{100 * (ratio - 1):+.1f} %"


def percent(fraction: float | None, digits: int = 1) -> str:
    """A fraction as a percentage without sign."""
    return NONE if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.{digits}f} %"


def detectable(entry: Mapping[str, Any]) -> str:
    """The smallest detectable effect of a metric; where no effect is detected, what is, given that A/A passes."""
    if entry.get("mde") is not None:
        return percent(entry["mde"], 2)
    if entry.get("a_a_passes") is None:
        return NONE
    given = entry.get("mde_given_a_a")
    return "none" if given is None else f"none ({percent(given, 2)} if A/A passes)"


def ratio_words(ratio: float | None, low: float | None, high: float | None) -> str:
    """E.g. "0.493 [0.481, 0.505]"; without an interval the point says so."""
    if ratio is None:
        return NONE
    if low is None or high is None:
        return f"{_digits(ratio)} (no interval)"
    return f"{_digits(ratio)} [{_digits(low)}, {_digits(high)}]"


def known(value: bool | int | None) -> str:
    """A recorded fact, or that there is none."""
    if value is None:
        return NONE
    return ("yes" if value else "no") if isinstance(value, bool) else f"{value:,}"


def companion_words(row: Mapping[str, Any] | None) -> str:
    """What an abnormal input did to the request beside it, e.g. "same answer, 1.3 times the time per token"."""
    same = (row or {}).get("companion_identical")
    if row is None or same is None:
        return NONE
    now, alone = row.get("companion_gap_ms"), row.get("undisturbed_gap_ms")
    pace = f", {now / alone:.2f} times the time per token" if now and alone else ""
    return f"{'same answer' if same else 'ANOTHER answer'}{pace}"


def _digits(value: float) -> str:
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.001:
        return f"{value:.2e}"
    for limit, digits in ((1, 4), (10, 3), (100, 2), (1000, 1)):
        if size < limit:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"
