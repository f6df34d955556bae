"""What metrics, verdicts and decisions are called on the pages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

METRIC_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "e2e_ms": "End-to-end latency",
        "ttft_ms": "Time to first token",
        "tpot_ms": "Time per output token",
        "itl_ms": "Gap between tokens",
        "service_ms": "Service time",
        "client_queue_ms": "Wait in the client",
        "throughput_tok_s": "Throughput",
        "throughput_setup_tok_s": "Throughput, set-up included",
        "output_tokens": "Output tokens",
        "error_rate": "Failed requests",
        "startup_ms": "Start-up time",
        "setup_ms": "Set-up before the load",
        "peak_rss_bytes": "Peak resident memory",
        "peak_gpu_allocated_bytes": "Peak device memory, allocated",
        "peak_gpu_reserved_bytes": "Peak device memory, reserved",
        "peak_gpu_used_bytes": "Peak device memory, in use by all",
        "kv_bytes_peak": "Peak KV-cache bytes",
        "kv_bytes_kept": "KV bytes kept while idle",
        "weight_bytes": "Weight bytes",
        "tokens_computed": "Tokens computed",
        "outputs": "Outputs, token by token",
        "quality_kl_mean": "Divergence from the baseline (KL), mean",
        "quality_kl_p99": "Divergence from the baseline (KL), p99",
        "quality_top1": "Agreement of the best token",
        "quality_max_dlogit": "Largest change of a logit",
        "quality_ppl_ratio": "Perplexity of held-out text, over the baseline's",
        "quality_batch_dlogit": "Change of a logit by the company of other requests",
    }
)
METRIC_HELP: Mapping[str, str] = MappingProxyType(
    {
        "e2e_ms": "From the moment a request was scheduled until it was done.",
        "ttft_ms": "From the moment a request was scheduled until its first token.",
        "tpot_ms": "(last token − first token) ÷ (tokens − 1). Requests with fewer than two tokens have none.",
        "itl_ms": "Time between one token and the next, from the engine's own stamps.",
        "service_ms": "From the moment a request was sent until it was done; waiting in the client is left out.",
        "client_queue_ms": "From the moment a request was scheduled until the client sent it.",
        "setup_ms": "Documents uploaded before the load, so that its requests name them by id.",
        "throughput_setup_tok_s": "Output tokens over the time of the load and of the set-up before it.",
    }
)
RESOURCE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "time_p50": "Time, p50",
        "time_p99": "Time, p99",
        "memory": "Memory",
        "memory_kept": "Memory kept while idle",
        "bytes_moved": "Bytes moved",
        "quality": "Quality",
        "startup": "Start-up",
    }
)
CHECK_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "samples": "All samples are there",
        "clock": "Time stamps are in order",
        "workload": "Same requests in every arm",
        "one_variable": "Exactly one variable changed",
        "arms_differ": "The change did something",
        "a_a": "Baseline against itself (A/A)",
        "slowed_recovered": "A known delay is seen",
        "output_length": "Outputs equally long",
        "littles_law": "Little's law",
        "client_queue": "The client did not queue",
        "outputs": "Timed outputs agree",
        "equivalence": "Equal outputs, bit by bit",
    }
)
DECISION_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "PROMOTE": "promote it to exactly the scope that was measured",
        "HOLD": "keep the baseline; the evidence does not allow a promotion",
        "ROLLBACK": "go back to the baseline",
        "CONTINUE": "run the remaining blocks",
    }
)
STATUS_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "complete": "every planned step is recorded",
        "running": "a process is writing it now",
        "lost": "it stopped before its end and no process writes it",
        "refused": "its record was changed or damaged, so none of its numbers is shown",
        "other schema": "it was recorded by another version of the format",
    }
)


def metric_name(metric: str, statistic: str = "") -> str:
    """`Time per output token, p50`; the bare name where the statistic adds nothing."""
    name = METRIC_NAMES.get(metric, metric)
    return f"{name}, {statistic}" if statistic and statistic not in {"total", "peak", "identical"} else name


def check_name(check: str) -> str:
    """A validity check or hard limit in words."""
    return CHECK_NAMES.get(check, check.replace("_", " "))
