"""Arithmetic that registers a price before it is paid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterproof.plan.schema import ExperimentConfig
from counterproof.workload.build import StudyWorkloads
from counterproof.workload.sealed import DocumentRequest, SealedRequest

CONTEXT_CACHE = "engine.context_cache.enabled"


def kv_bytes(config: ExperimentConfig, workloads: StudyWorkloads, bytes_per_token: int) -> dict[str, Any]:
    """Most KV bytes that the workload can occupy at once, as a registered price.

    A request of p prompt and n output tokens stores at most p + n - 1 tokens (the last one's KV is never
    needed), in whole blocks; at most `concurrency` requests are there at once: the largest ones count. Where a
    context cache keeps the load's documents, their full blocks are there once and in no request.
    """
    block = config.engine.kv_cache.block_tokens
    # An open loop has no slots; the engine runs so many at once and no more.
    closed = config.workload.arrival == "closed"
    slots = config.workload.concurrency if closed else config.engine.scheduler.max_running
    keeps = keeps_documents(config)
    documents, own = max((_largest(requests, block, slots, keeps) for requests in workloads.blocks), key=sum)
    kept = f"{documents} tokens of documents in full blocks, kept once, and " if keeps else ""
    return {
        "predicted_bytes": (documents + own) * bytes_per_token,
        "arithmetic": (
            f"{kept}{own} tokens in whole blocks of {block} (prompt + output - 1, the {slots} largest at once) "
            f"x {bytes_per_token} bytes a token"
        ),
    }


def keeps_documents(config: ExperimentConfig) -> bool:
    """Whether the candidate has a context cache, which keeps a load's documents."""
    factor = config.factor
    if factor is not None and factor.path == CONTEXT_CACHE:
        return factor.candidate is True
    return config.engine.context_cache.enabled


def _largest(requests: Sequence[SealedRequest], block: int, slots: int, keeps: bool) -> tuple[int, int]:
    """Tokens of the documents kept, and of the largest requests beside them."""
    kept: dict[tuple[int, ...], int] = {}
    sizes = []
    for request in requests:
        size = -(-(len(request.token_ids) + request.max_new_tokens - 1) // block) * block
        if keeps and isinstance(request, DocumentRequest):
            kept[request.document] = request.document_tokens // block * block
            size -= kept[request.document]
        sizes.append(size)
    return sum(kept.values()), sum(sorted(sizes, reverse=True)[:slots])
