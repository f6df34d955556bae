"""Native storage and attention over a KV store of any format, for tests and for callers that compose layers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch

from intaglio.compute.native.library import KV_FORMAT_OF, Context
from intaglio.compute.native.structs import IgAttention, IgKv
from intaglio.state.kv_store import KVStore


def write(context: Context, store: KVStore, layer: int, slots: Sequence[int], fresh: torch.Tensor) -> None:
    """Store keys and values [n, 2, kv_heads, head_dim] of one layer at `slots`, in the store's format."""
    group = store.group
    wide, where = fresh.to(torch.float32).contiguous(), torch.tensor(slots, dtype=torch.int32)
    context.kv_store(wide, where, kv_struct(store), layer, group.kv_heads, group.head_dim)


def attend(
    context: Context,
    queries: torch.Tensor,
    store: KVStore,
    rows: Sequence[tuple[int, int, int, Sequence[int]]],
    *,
    layer: int = 0,
    window: int | None = None,
    rounded: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of several rows, fp32 queries [n, heads, d] to out [n, heads, d] and lse [n, heads].

    rows: (first token of queries, tokens, context, block table). rounded: queries, keys, values and weights pass
    through bf16 as in a bf16 model, where the instruction set multiplies bf16.
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
    job.kv, job.layer, job.row_count, job.window = kv_struct(store), layer, len(rows), window or 0
    job.heads, job.kv_heads, job.head_dim = heads, store.group.kv_heads, dim
    job.rounded = int(rounded)
    context.attention(job)
    return out, lse


def kv_struct(store: KVStore) -> IgKv:
    """Where a store lies and in which format."""
    form = KV_FORMAT_OF[store.group.dtype]
    return IgKv(store.data.data_ptr(), store.data.stride(0), store.block_tokens, form)
