"""Paged attention of a whole step: which kernel takes which tiles, and the room that splits need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from intaglio.compute.gpu import attention_kernels as kernels
from intaglio.compute.gpu.layout import Span, TileSet, pad_tables, span_tiles
from intaglio.compute.gpu.ops import LAUNCH, aligned
from intaglio.compute.gpu.tiles import KEY_TILE, padded

# Scores are held in powers of two: exp2 is what the hardware has.
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """Heads of one model. uniform: every query takes the split kernel with fixed splits, so that the additions of
    a query depend on its position alone. wide: multiply in fp32 whatever the format."""

    heads: int
    kv_heads: int
    dim: int
    uniform: bool
    wide: bool

    @property
    def groups(self) -> int:
        """Query heads per kv head."""
        return self.heads // self.kv_heads

    def run(
        self,
        queries: torch.Tensor,
        layer: torch.Tensor,
        table: torch.Tensor,
        block_tokens: int,
        sets: Sequence[TileSet],
        window: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """out [tokens, heads * d] in the queries' dtype and lse [tokens, heads] fp32.

        queries [tokens, heads, d], rows may lie apart; layer [slots, 2, kv_heads, d]; table int32 [rows, blocks].
        """
        tokens = queries.shape[0]
        out = torch.empty(tokens, self.heads * self.dim, dtype=queries.dtype, device=queries.device)
        lse = torch.empty(tokens, self.heads, dtype=torch.float32, device=queries.device)
        queries = aligned(queries)
        for part in sets:
            shape = {
                "GROUPS": self.groups,
                "KV_HEADS": self.kv_heads,
                "Q_STRIDE": queries.stride(0),
                "DIM": self.dim,
                "DIM_PAD": padded(self.dim),
                "ROWS": part.rows,
                "BLOCK": block_tokens,
                "KEYS": KEY_TILE,
                "WINDOW": window or 0,
                "WIDE": self.wide,
                "FIELDS": kernels.TILE_FIELDS,
                **LAUNCH,
            }
            scale = _LOG2_E / math.sqrt(self.dim)
            inputs = (queries, layer, table, part.tiles)
            if part.splits:
                self._split(inputs, part, (out, lse), scale, shape)
            else:
                grid = (part.tiles.shape[0], self.kv_heads)
                kernels.paged_prefill[grid](*inputs, out, lse, table.shape[1], scale, **shape)
        return out, lse

    def _split(
        self,
        inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
        part: TileSet,
        results: tuple[torch.Tensor, torch.Tensor],
        scale: float,
        shape: dict[str, int | bool],
    ) -> None:
        queries, table = inputs[0], inputs[2]
        tokens, device = queries.shape[0], queries.device
        tops = torch.empty(part.splits, tokens, self.heads, dtype=torch.float32, device=device)
        totals = torch.empty_like(tops)
        accs = torch.empty(*tops.shape, self.dim, dtype=torch.float32, device=device)
        grid = (part.tiles.shape[0], self.kv_heads, part.splits)
        kernels.paged_decode[grid](
            *inputs, tops, totals, accs, table.shape[1], part.split_keys, tokens, scale, **shape
        )
        kernels.merge_splits[(part.positions.shape[0], self.kv_heads)](
            tops,
            totals,
            accs,
            part.positions,
            *results,
            part.split_keys,
            tokens,
            GROUPS=self.groups,
            GROUPS_PAD=1 << (self.groups - 1).bit_length(),
            KV_HEADS=self.kv_heads,
            DIM=self.dim,
            DIM_PAD=padded(self.dim),
            **LAUNCH,
        )

    def one_row(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        context: int,
        window: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See compute/attention.py: keys and values [kv_heads, length, d] of one row, laid out as a store first."""
        layer = torch.stack((keys.transpose(0, 1), values.transpose(0, 1)), 1).contiguous()
        span = Span(0, queries.shape[0], context, range(keys.shape[1]))
        table, sets = place([span], 1, self.groups, self.uniform, queries.device)
        return self.run(queries, layer, table, 1, sets, window)


def place(
    spans: Sequence[Span], block_tokens: int, groups: int, uniform: bool, device: torch.device
) -> tuple[torch.Tensor, list[TileSet]]:
    """Block table and tiles of spans on the device, outside a step."""
    sets = [
        TileSet(
            torch.from_numpy(made.tiles).to(device),
            torch.from_numpy(made.positions.astype("int32")).to(device),
            made.rows,
            made.splits,
            made.split_keys,
        )
        for made in span_tiles(spans, groups, uniform)
    ]
    return torch.from_numpy(pad_tables(spans, block_tokens)).to(device), sets
