"""The decoder: embedding, a range of layers, head. It owns no state but its weights."""

from __future__ import annotations

import torch

from intaglio.compute.batch import StepBatch
from intaglio.compute.layers import LayerWeights, ModelWeights
from intaglio.compute.numerics import Numerics
from intaglio.compute.shard import ShardGroup
from intaglio.compute.spec import ModelSpec


class Decoder:
    """Llama-family decoder over fused weights. All results are fresh tensors; inputs are not changed."""

    def __init__(self, spec: ModelSpec, weights: ModelWeights, numerics: Numerics, group: ShardGroup) -> None:
        self.spec = spec
        self.weights = weights
        self._numerics = numerics
        self._group = group
        self._qk_heads = spec.heads + spec.kv_heads
        self._qk_width = self._qk_heads * spec.head_dim

    def forward(
        self, batch: StepBatch, hidden: torch.Tensor | None = None, first: int = 0, last: int | None = None
    ) -> torch.Tensor:
        """Run layers [first, last). Without `hidden` the batch's tokens are embedded first.

        Returns hidden states [tokens, hidden]; keys and values of the layers are stored on the way.
        """
        x = self.weights.embed(batch.tokens) if hidden is None else hidden.clone()
        for index in range(first, self.spec.layers if last is None else last):
            self._layer(x, batch, index)
        return x

    def logits(self, hidden: torch.Tensor, batch: StepBatch) -> torch.Tensor:
        """fp32 logits [logit rows, vocab] of the batch's chosen rows."""
        rows = hidden if batch.logit_whole else hidden.index_select(0, batch.logit_index)
        normed = self._numerics.rms_norm(rows, self.weights.final_norm, self.spec.norm_eps)
        return self._numerics.linear(normed, self.weights.head).float()

    def _layer(self, x: torch.Tensor, batch: StepBatch, index: int) -> None:
        """One layer, added into x in place."""
        ops, eps, w = self._numerics, self.spec.norm_eps, self.weights.layers[index]
        qkv = ops.linear(ops.rms_norm(x, w.input_norm, eps), w.qkv)
        mixed = self._attention(qkv, batch, index, w)
        x.add_(self._group.all_reduce(ops.linear(mixed, w.out)))
        gate_up = ops.linear(ops.rms_norm(x, w.post_norm, eps), w.gate_up)
        x.add_(self._group.all_reduce(ops.linear(ops.swiglu(gate_up), w.down)))

    def _attention(self, qkv: torch.Tensor, batch: StepBatch, index: int, w: LayerWeights) -> torch.Tensor:
        spec, total = self.spec, qkv.shape[0]
        heads = qkv[:, : self._qk_width].view(total, self._qk_heads, spec.head_dim)
        if w.qk_norm is not None:
            heads.copy_(self._numerics.rms_norm(heads, w.qk_norm, spec.norm_eps))
        self._numerics.rotate(heads, batch.cos, batch.sin)
        fresh = qkv[:, spec.q_width :].view(total, 2, spec.kv_heads, spec.head_dim)
        if batch.store is not None and batch.slots is not None:
            batch.store.write(index, batch.slots, fresh)
        queries = heads[:, : spec.heads]
        if len(batch.rows) == 1:
            return self._row(queries, fresh, batch, 0, index, w.window)
        out = torch.empty(total, spec.q_width, dtype=qkv.dtype, device=qkv.device)
        for number, row in enumerate(batch.rows):
            part = slice(row.start, row.start + row.count)
            out[part] = self._row(queries[part], fresh[part], batch, number, index, w.window)
        return out

    def _row(
        self,
        queries: torch.Tensor,
        fresh: torch.Tensor,
        batch: StepBatch,
        number: int,
        index: int,
        window: int | None,
    ) -> torch.Tensor:
        row = batch.rows[number]
        if row.run is None or batch.store is None:
            keys, values = fresh[:, 0].transpose(0, 1), fresh[:, 1].transpose(0, 1)
        else:
            keys, values = batch.store.read(index, row.run)
        return self._numerics.attend(queries, keys, values, row.context, window)[0]
