"""Single native operations on tensors, for tests and for callers that compose layers of their own."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch

from intaglio.compute.native.library import FORMAT_OF, Context
from intaglio.compute.native.structs import IgAttention


def attend(
    context: Context, queries: torch.Tensor, kv: torch.Tensor, start: int, window: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one row whose keys and values lie in order.

    queries fp32 [n, heads, d] at positions start ..; kv [length, 2, kv_heads, d] in fp32 or bf16, length at least
    start + n. Returns out fp32 [n, heads, d] and lse fp32 [n, heads].
    """
    rows = [(0, queries.shape[0], start, (0,))]
    return attend_paged(context, queries, kv[None], rows, block_tokens=kv.shape[0], window=window)


def attend_paged(
    context: Context,
    queries: torch.Tensor,
    store: torch.Tensor,
    rows: Sequence[tuple[int, int, int, Sequence[int]]],
    *,
    block_tokens: int,
    layer: int = 0,
    window: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of several rows over a paged store [layers, slots, 2, kv_heads, d].

    rows: (first token of queries, tokens, context, block table). Other tokens' results are left undefined.
    """
    tokens, heads, dim = queries.shape
    queries, tables, flat = queries.contiguous(), array("i"), array("q")
    for first, count, before, table in rows:
        flat.extend((first, count, before, len(tables), 0))
        tables.extend(table)
    out, lse = torch.empty_like(queries), torch.empty(tokens, heads)
    job = IgAttention()
    job.q, job.out, job.lse = queries.data_ptr(), out.data_ptr(), lse.data_ptr()
    job.rows, job.tables = flat.buffer_info()[0], tables.buffer_info()[0]
    job.kv.base, job.kv.layer_stride = store.data_ptr(), store.stride(0)
    job.kv.block_tokens, job.kv.format = block_tokens, FORMAT_OF[store.dtype]
    job.layer, job.row_count, job.window = layer, len(rows), window or 0
    job.heads, job.kv_heads, job.head_dim = heads, store.shape[3], dim
    job.rounded = int(store.dtype == torch.bfloat16)
    context.attention(job)
    return out, lse
