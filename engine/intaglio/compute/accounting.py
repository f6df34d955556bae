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


class CostModel:
    """What one model's rows cost; what depends on the model alone is worked out once."""

    def __init__(self, spec: ModelSpec) -> None:
        self._token_macs = spec.linear_macs_per_token()
        self._logit_macs = spec.hidden * spec.vocab
        self._pair_macs = [(window, layers * 2 * spec.q_width) for window, layers in _by_window(spec)]

    def step(self, rows: Sequence[RowPlan], kv_bytes_per_token: int) -> StepCost:
        """Cost of computing `rows`; kv_bytes_per_token is 0 without a cache."""
        tokens = visible = macs = 0
        for row in rows:
            count, context = len(row.tokens), row.context_len
            tokens += count
            visible += context + count
            macs += len(row.logit_rows) * self._logit_macs
            for window, pair_macs in self._pair_macs:
                macs += pair_macs * _pairs(count, context, window)
        macs += tokens * self._token_macs
        return StepCost(tokens, 2 * macs, tokens * kv_bytes_per_token, visible * kv_bytes_per_token)


def _by_window(spec: ModelSpec) -> list[tuple[int | None, int]]:
    return [(window, spec.windows.count(window)) for window in dict.fromkeys(spec.windows)]


def _pairs(count: int, context: int, window: int | None) -> int:
    """Query-key pairs that a causal row of `count` queries after `context` tokens computes."""
    whole = count * context + count * (count + 1) // 2
    if window is None or context + count <= window:
        return whole
    return sum(min(window, context + i + 1) for i in range(count))
