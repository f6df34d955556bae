"""Exact work of a step, counted from its plan: tokens, floating-point operations, bytes of KV moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from intaglio.compute.spec import ModelSpec
from intaglio.intake.step_plan import RowPlan


@dataclass(frozen=True, slots=True)
class StepCost:
    """`flops` counts two per multiply-add of linears, attention scores, attention sums and head: what the
    result needs, without padding. kv_bytes_read counts each row's visible tokens once."""

    tokens: int
    flops: int
    kv_bytes_written: int
    kv_bytes_read: int


def step_cost(spec: ModelSpec, rows: Sequence[RowPlan], kv_bytes_per_token: int) -> StepCost:
    """Cost of computing `rows`; kv_bytes_per_token is 0 without a cache."""
    tokens = sum(len(row.tokens) for row in rows)
    logit_rows = sum(len(row.logit_rows) for row in rows)
    macs = tokens * spec.linear_macs_per_token() + logit_rows * spec.hidden * spec.vocab
    for window, layers in _by_window(spec):
        pairs = sum(_pairs(len(row.tokens), row.context_len, window) for row in rows)
        macs += layers * pairs * 2 * spec.q_width
    visible = sum(row.context_len + len(row.tokens) for row in rows)
    return StepCost(tokens, 2 * macs, tokens * kv_bytes_per_token, visible * kv_bytes_per_token)


def _by_window(spec: ModelSpec) -> list[tuple[int | None, int]]:
    return [(window, spec.windows.count(window)) for window in dict.fromkeys(spec.windows)]


def _pairs(count: int, context: int, window: int | None) -> int:
    """Query-key pairs that a causal row of `count` queries after `context` tokens computes."""
    whole = count * context + count * (count + 1) // 2
    if window is None or context + count <= window:
        return whole
    return sum(min(window, context + i + 1) for i in range(count))
