"""A step plan turned into tensors: one flat run of tokens through the linears, rows apart in attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from intaglio.compute.layers import RopeTable
from intaglio.intake.step_plan import RowPlan
from intaglio.state.kv_store import KVRun, KVStore, SlotMap


@dataclass(frozen=True, slots=True)
class RowSpan:
    """One row's part of the flat batch: tokens [start, start + count), after `context` cached tokens.

    `run` is None without a cache: the row then attends to its own tokens alone.
    """

    start: int
    count: int
    context: int
    run: KVRun | None


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What the decoder computes in one step. cos and sin are [tokens, 1, head_dim]."""

    tokens: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    rows: tuple[RowSpan, ...]
    logit_index: torch.Tensor
    logit_whole: bool
    slots: SlotMap | None
    store: KVStore | None

    @property
    def token_count(self) -> int:
        return self.tokens.shape[0]


def build_batch(
    rows: Sequence[RowPlan], store: KVStore | None, rope: RopeTable, device: torch.device
) -> StepBatch:
    """Lay the rows end to end. `store` is None for a step without a cache."""
    tokens: list[int] = []
    positions: list[int] = []
    spans: list[RowSpan] = []
    logits: list[int] = []
    slots: list[int] = []
    for row in rows:
        start, count = len(tokens), len(row.tokens)
        tokens.extend(row.tokens)
        positions.extend(range(row.start, row.start + count))
        logits.extend(start + i for i in row.logit_rows)
        run = None
        if store is not None:
            table = row.block_tables[0]
            slots.extend(store.slots(table, row.start, row.start + count))
            run = store.run(table, row.start + count)
        spans.append(RowSpan(start, count, row.context_len, run))
    cos, sin = rope.tables(max(positions) + 1)
    if len(rows) == 1:
        first, stop = positions[0], positions[-1] + 1
        cos, sin = cos[first:stop], sin[first:stop]
    else:
        index = torch.tensor(positions, dtype=torch.int64, device=device)
        cos, sin = cos.index_select(0, index), sin.index_select(0, index)
    return StepBatch(
        tokens=torch.tensor(tokens, dtype=torch.int64, device=device),
        cos=cos,
        sin=sin,
        rows=tuple(spans),
        logit_index=torch.tensor(logits, dtype=torch.int64, device=device),
        logit_whole=len(logits) == len(tokens),
        slots=None if store is None else store.map_slots(slots),
        store=store,
    )
