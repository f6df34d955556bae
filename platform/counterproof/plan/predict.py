"""Arithmetic that registers a price before it is paid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterproof.plan.schema import ExperimentConfig
from counterproof.workload.build import StudyWorkloads
from counterproof.workload.sealed import SealedRequest


def kv_bytes(config: ExperimentConfig, workloads: StudyWorkloads, bytes_per_token: int) -> dict[str, Any]:
    """Most KV bytes that the workload can occupy at once, as a registered price.

    A request of p prompt and n output tokens stores at most p + n - 1 tokens (the last one's KV is never
    needed), in whole blocks; at most `concurrency` requests are there at once: the largest ones count.
    """
    block = config.engine.kv_cache.block_tokens
    # An open loop has no slots; the engine runs so many at once and no more.
    closed = config.workload.arrival == "closed"
    slots = config.workload.concurrency if closed else config.engine.scheduler.max_running
    peak = max(_largest(requests, block, slots) for requests in workloads.blocks)
    return {
        "predicted_bytes": peak * bytes_per_token,
        "arithmetic": (
            f"{peak} tokens in whole blocks of {block} (prompt + output - 1, the {slots} largest at once) "
            f"x {bytes_per_token} bytes a token"
        ),
    }


def _largest(requests: Sequence[SealedRequest], block: int, slots: int) -> int:
    sizes = [len(r.token_ids) + r.max_new_tokens - 1 for r in requests]
    return sum(sorted((-(-size // block) * block for size in sizes), reverse=True)[:slots])
