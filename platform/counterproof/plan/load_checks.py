"""What is refused of a workload's own fields at registration: arrivals, shared prefixes, traces."""

from __future__ import annotations

import math
from collections.abc import Iterator

from counterproof.plan.schema import WorkloadConfig

ARRIVALS = ("closed", "constant", "poisson", "gamma", "trace")
LANGUAGES = ("en", "zh")
BLOCK_TOKENS = 512


def load_faults(load: WorkloadConfig) -> Iterator[str]:
    """Every fault, with the field and what it must be."""
    if load.language not in LANGUAGES:
        yield f"workload.language must be one of {', '.join(LANGUAGES)}, not '{load.language}'"
    if load.builder == "pydoc_questions" and load.language != "en":
        yield "workload.builder pydoc_questions is English; take passage_questions for workload.language=zh"
    yield from _arrival(load)
    if load.builder == "shared_documents":
        yield from _documents(load)
    if load.builder == "multi_turn" and not (1 <= load.turns <= 1000 and 1 <= load.reply_tokens <= 1_000_000):
        yield "workload.turns must be between 1 and 1000 and workload.reply_tokens at least 1"
    if load.builder == "trace":
        yield from _trace(load)


def _arrival(load: WorkloadConfig) -> Iterator[str]:
    if load.arrival not in ARRIVALS:
        yield f"workload.arrival must be one of {', '.join(ARRIVALS)}, not '{load.arrival}'"
    if load.arrival == "trace" and load.builder != "trace":
        yield "workload.arrival trace takes the times of a trace: set workload.builder=trace"
    if load.arrival in ("constant", "poisson", "gamma") and not 0 < load.rate_per_s <= 100_000:
        yield f"workload.rate_per_s must lie between 0 and 100000, not {load.rate_per_s}"
    if load.arrival == "gamma" and not 0.01 <= load.arrival_cv <= 100:
        yield f"workload.arrival_cv must lie between 0.01 and 100, not {load.arrival_cv}"
    if load.arrival == "trace" and not 0 < load.time_scale <= 1_000_000:
        yield f"workload.time_scale must be positive, not {load.time_scale}"


def _documents(load: WorkloadConfig) -> Iterator[str]:
    if not 1 <= load.documents <= load.requests:
        yield f"workload.documents must be between 1 and workload.requests, not {load.documents}"
    if not 1 <= load.document_tokens < load.prompt_tokens:
        yield (
            f"workload.document_tokens must leave room for a question within workload.prompt_tokens = "
            f"{load.prompt_tokens}, it is {load.document_tokens}"
        )


def _trace(load: WorkloadConfig) -> Iterator[str]:
    if load.trace is None:
        yield "workload.trace is not set: name a trace file"
    if load.trace_format not in ("azure", "mooncake"):
        yield f"workload.trace_format must be azure or mooncake, not '{load.trace_format}'"
    tokens = BLOCK_TOKENS * load.length_scale
    if not (math.isfinite(tokens) and 1 <= tokens <= 1_000_000) or tokens != round(tokens):
        yield (
            f"workload.length_scale must make {BLOCK_TOKENS} tokens a whole number of tokens, "
            f"e.g. {16 / BLOCK_TOKENS} for 16; {load.length_scale} does not"
        )
