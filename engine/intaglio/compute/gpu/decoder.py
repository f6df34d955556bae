"""The decoder with paged attention: all rows of a step in one launch per layer, keys and values where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from intaglio.compute.batch import StepBatch
from intaglio.compute.decoder import Decoder
from intaglio.compute.gpu import ops
from intaglio.compute.gpu.attend import PagedAttention
from intaglio.compute.gpu.layout import StepLayout, lay_out
from intaglio.compute.gpu.numerics import TritonNumerics
from intaglio.compute.layers import LayerWeights, ModelWeights, RopeTable
from intaglio.compute.shard import ShardGroup
from intaglio.compute.spec import ModelSpec
from intaglio.errors import WorkerError
from intaglio.intake.step_plan import RowPlan
from intaglio.state.kv_store import KVStore


@dataclass(frozen=True, slots=True)
class PagedBatch(StepBatch):
    """A step whose rows are described on the device (`rows` is empty: attention does not go row by row)."""

    layout: StepLayout


class PagedDecoder(Decoder):
    """Decoder whose attention reads blocks through their tables. Without a cache it reads the step's own tokens,
    rounded to the cache's dtype, in the same order."""

    def __init__(
        self, spec: ModelSpec, weights: ModelWeights, numerics: TritonNumerics, kv_dtype: torch.dtype
    ) -> None:
        super().__init__(spec, weights, numerics, ShardGroup())
        self._attend: PagedAttention = numerics.attention
        self._kv_dtype = kv_dtype

    def batch(
        self, rows: Sequence[RowPlan], store: KVStore | None, rope: RopeTable, device: torch.device
    ) -> PagedBatch:
        """A step's rows laid end to end. Raises WorkerError for a slot outside the store."""
        size = None if store is None else (store.blocks, store.block_tokens)
        layout = lay_out(rows, size, self._attend.groups, self._attend.uniform, device)
        cos, sin = rope.tables(layout.last_position + 1)
        return PagedBatch(
            tokens=layout.tokens,
            cos=cos.index_select(0, layout.positions),
            sin=sin.index_select(0, layout.positions),
            rows=(),
            logit_index=layout.logit_index,
            logit_whole=layout.logit_index.shape[0] == layout.tokens.shape[0],
            slots=None,
            store=store,
            layout=layout,
        )

    def _attention(self, qkv: torch.Tensor, batch: StepBatch, index: int, w: LayerWeights) -> torch.Tensor:
        if not isinstance(batch, PagedBatch):
            raise WorkerError("a paged decoder needs the batch that its own `batch` lays out")
        spec, total, layout = self.spec, qkv.shape[0], batch.layout
        heads = qkv[:, : self._qk_width].view(total, self._qk_heads, spec.head_dim)
        if w.qk_norm is not None:
            heads.copy_(self._numerics.rms_norm(heads, w.qk_norm, spec.norm_eps))
        self._numerics.rotate(heads, batch.cos, batch.sin)
        fresh = qkv[:, spec.q_width :].view(total, 2, spec.kv_heads, spec.head_dim)
        if batch.store is None or layout.slots is None:
            layer = fresh.to(self._kv_dtype).contiguous()
        else:
            layer = batch.store.data[index]
            ops.store_rows(fresh, layer, layout.slots)
        queries = heads[:, : spec.heads]
        return self._attend.run(queries, layer, layout.table, layout.block_tokens, layout.sets, w.window)[0]
