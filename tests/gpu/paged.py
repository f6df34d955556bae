"""Rows of queries over a scattered, poisoned store, their exact attention, and torch's own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from intaglio.compute.attention import visible
from intaglio.compute.gpu import ops
from intaglio.compute.gpu.attend import PagedAttention, place
from intaglio.compute.gpu.layout import Span

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """rows: (queries, context) each. kv: dtype of the store, that of the queries by default."""

    rows: tuple[tuple[int, int], ...]
    heads: int
    kv_heads: int
    dim: int
    window: int | None = None
    block_tokens: int = 16

    def __str__(self) -> str:
        rows = ",".join(f"{n}@{context}" for n, context in self.rows)
        window = f"/window{self.window}" if self.window else ""
        return f"rows[{rows}]/heads{self.heads}:{self.kv_heads}x{self.dim}/block{self.block_tokens}{window}"


@dataclass
class Setup:
    """One case on a device. store [slots, 2, kv_heads, dim]: NaN wherever no row's token lies."""

    case: Case
    queries: list[torch.Tensor]
    fresh: list[torch.Tensor]
    blocks: list[tuple[int, ...]]
    store: torch.Tensor

    def slots(self, row: int, start: int, stop: int) -> torch.Tensor:
        size, blocks = self.case.block_tokens, self.blocks[row]
        where = [blocks[p // size] * size + p % size for p in range(start, stop)]
        return torch.tensor(where, dtype=torch.int32, device=self.store.device)

    def attend(self, attention: PagedAttention, order: list[int] | None = None) -> list[tuple[torch.Tensor, torch.Tensor]]:  # fmt: skip
        """(out, lse) per row, all rows of `order` in one launch."""
        order = list(range(len(self.queries))) if order is None else order
        spans, start = [], 0
        for row in order:
            n, context = self.case.rows[row]
            spans.append(Span(start, n, context, self.blocks[row]))
            start += n
        device = self.store.device
        table, sets = place(spans, self.case.block_tokens, attention.groups, attention.uniform, device)
        flat = torch.cat([self.queries[row] for row in order])
        out, lse = attention.run(flat, self.store, table, self.case.block_tokens, sets, self.case.window)
        parts = [slice(span.start, span.start + span.count) for span in spans]
        return [(out[part], lse[part]) for part in parts]


def prepare(case: Case, dtype: torch.dtype, device: torch.device, kv: torch.dtype | None = None) -> Setup:
    """Random rows, stored through the kernel into blocks that lie in no order."""
    draw = torch.Generator().manual_seed(len(str(case)) * 7919 + case.dim)
    size = case.block_tokens
    needed = [-(-(n + context) // size) for n, context in case.rows]
    order = torch.randperm(2 * sum(needed), generator=draw).tolist()
    store = torch.full((2 * sum(needed) * size, 2, case.kv_heads, case.dim), float("nan"), dtype=kv or dtype)
    setup = Setup(case, [], [], [], store.to(device))
    for row, ((n, context), count) in enumerate(zip(case.rows, needed, strict=True)):
        blocks, order = tuple(order[:count]), order[count:]
        setup.blocks.append(blocks)
        setup.queries.append(torch.randn(n, case.heads, case.dim, generator=draw).to(device, dtype))
        fresh = torch.randn(n + context, 2, case.kv_heads, case.dim, generator=draw).to(device, dtype)
        setup.fresh.append(fresh)
        ops.store_rows(fresh, setup.store, setup.slots(row, 0, n + context))
    return setup


def exact(setup: Setup, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) in float64, by definition, of the values as the store holds them."""
    case, (n, context) = setup.case, setup.case.rows[row]
    keys, values = _held(setup, row, torch.float64)
    scores = setup.queries[row].double().transpose(0, 1) @ keys.transpose(1, 2) / math.sqrt(case.dim)
    scores.masked_fill_(~visible(n, n + context, context, 0, case.window, scores.device), -math.inf)
    out = torch.softmax(scores, -1) @ values
    return out.transpose(0, 1).reshape(n, -1), torch.logsumexp(scores, -1).t()


def library(setup: Setup, row: int) -> torch.Tensor:
    """torch's attention in the queries' dtype."""
    case, (n, context) = setup.case, setup.case.rows[row]
    queries = setup.queries[row]
    keys, values = _held(setup, row, queries.dtype)
    mask = visible(n, n + context, context, 0, case.window, queries.device)
    out = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask
    )
    return out[0].transpose(0, 1).reshape(n, -1)


def _held(setup: Setup, row: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    held = setup.fresh[row].to(setup.store.dtype).to(dtype).permute(1, 2, 0, 3)
    held = held.repeat_interleave(setup.case.heads // setup.case.kv_heads, 1)
    return held[0].contiguous(), held[1].contiguous()
