"""A step's rows as whole numbers on the device: tokens, positions, slots, block tables, attention tiles.

Everything travels in one int32 copy, of which the fields below are views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from intaglio.compute.gpu.tiles import DECODE_ROWS, KEY_TILE, PREFILL_ROWS, SPLIT_KEYS
from intaglio.errors import WorkerError
from intaglio.intake.step_plan import RowPlan

# Programs that fast mode aims at when it splits the keys of a few decoding rows: twice the multiprocessors.
_PROGRAMS = 264
_LEAST_SPLIT = 256


@dataclass(frozen=True, slots=True)
class TileSet:
    """Tiles of one launch. tiles int32 [n, 5] (see attention_kernels); positions int32 [tokens, 2]: number, position.

    splits: grid of the keys, each of split_keys; 0 where a tile walks all of them itself.
    """

    tiles: torch.Tensor
    positions: torch.Tensor
    rows: int
    splits: int
    split_keys: int


@dataclass(frozen=True, slots=True)
class StepLayout:
    """slots is None without a cache: the table then names the step's own tokens, in blocks of one."""

    tokens: torch.Tensor
    positions: torch.Tensor
    logit_index: torch.Tensor
    slots: torch.Tensor | None
    table: torch.Tensor
    block_tokens: int
    sets: tuple[TileSet, ...]
    last_position: int


@dataclass(frozen=True, slots=True)
class Span:
    """A row to lay out: `count` queries from flat token `start` on, the first at `position`, and its blocks."""

    start: int
    count: int
    position: int
    blocks: Sequence[int]


def lay_out(
    rows: Sequence[RowPlan], store: tuple[int, int] | None, groups: int, uniform: bool, device: torch.device
) -> StepLayout:
    """Lay rows end to end. store: (blocks, block_tokens), None without a cache.

    uniform: every tile goes through the split kernel with fixed splits (invariant mode), else queries that come
    alone are split as suits the batch and the others walk their keys in larger tiles. Raises WorkerError for a slot
    outside the store.
    """
    spans: list[Span] = []
    start = 0
    for row in rows:
        count = len(row.tokens)
        # Without a cache a "block" is one token of the step itself.
        blocks = row.block_tables[0] if store is not None else range(start, start + count)
        spans.append(Span(start, count, row.context_len if store is not None else 0, blocks))
        start += count
    block_tokens = 1 if store is None else store[1]
    positions = np.concatenate([np.arange(row.start, row.start + len(row.tokens)) for row in rows])
    slots = None
    if store is not None:
        slots = np.concatenate([_slots(span, block_tokens) for span in spans])
        if slots.min() < 0 or slots.max() >= store[0] * block_tokens:
            raise WorkerError(f"a slot lies outside the store of {store[0]} blocks; nothing was written")
    logits = [span.start + i for span, row in zip(spans, rows, strict=True) for i in row.logit_rows]
    tokens = [token for row in rows for token in row.tokens]
    packer = _Packer(device)
    parts = [packer.add(np.asarray(part)) for part in (tokens, positions, logits)]
    where = None if slots is None else packer.add(slots)
    pending = span_tiles(spans, groups, uniform)
    table, tile_parts = packer.add(pad_tables(spans, block_tokens)), [packer.add_set(p) for p in pending]
    packer.send()
    return StepLayout(
        tokens=packer.view(parts[0]),
        positions=packer.view(parts[1]),
        logit_index=packer.view(parts[2]),
        slots=None if where is None else packer.view(where),
        table=packer.view(table),
        block_tokens=block_tokens,
        sets=tuple(packer.view_set(part) for part in tile_parts),
        last_position=int(positions.max()),
    )


def _slots(span: Span, block_tokens: int) -> np.ndarray:
    at = np.arange(span.position, span.position + span.count)
    return np.asarray(span.blocks, dtype=np.int64)[at // block_tokens] * block_tokens + at % block_tokens


def pad_tables(spans: Sequence[Span], block_tokens: int) -> np.ndarray:
    """Block tables [rows, longest], cut to the blocks that are in use and padded with 0 (never read)."""
    used = [-(-(span.position + span.count) // block_tokens) for span in spans]
    table = np.zeros((len(spans), max(used)), dtype=np.int32)
    for number, (span, blocks) in enumerate(zip(spans, used, strict=True)):
        table[number, :blocks] = span.blocks[:blocks]
    return table


@dataclass(frozen=True, slots=True)
class HostTiles:
    """A TileSet before it is sent."""

    tiles: np.ndarray
    positions: np.ndarray
    rows: int
    splits: int
    split_keys: int


def span_tiles(spans: Sequence[Span], groups: int, uniform: bool) -> list[HostTiles]:
    """Tiles of a step (see lay_out); `groups` query heads share a kv head."""
    numbered = list(enumerate(spans))
    if uniform:
        return [_set(numbered, groups, DECODE_ROWS, SPLIT_KEYS)]
    alone = [(i, span) for i, span in numbered if span.count == 1]
    longer = [(i, span) for i, span in numbered if span.count > 1]
    sets = []
    if longer:
        sets.append(_set(longer, groups, PREFILL_ROWS, 0))
    if alone:
        longest = max(span.position + 1 for _, span in alone)
        splits = max(1, min(_PROGRAMS // len(alone), longest // _LEAST_SPLIT))
        keys = -(-longest // splits)
        sets.append(_set(alone, groups, DECODE_ROWS, -(-keys // KEY_TILE) * KEY_TILE))
    return sets


def _set(spans: Sequence[tuple[int, Span]], groups: int, rows: int, split_keys: int) -> HostTiles:
    rows = max(rows, 1 << (groups - 1).bit_length())
    step = rows // groups
    tiles = [
        (
            number,
            span.start + first,
            span.position + first,
            min(step, span.count - first),
            span.position + span.count,
        )
        for number, span in spans
        for first in range(0, span.count, step)
    ]
    positions = np.concatenate(
        [np.stack((np.arange(s.count) + s.start, np.arange(s.count) + s.position), 1) for _, s in spans]
    )
    longest = int(positions[:, 1].max()) + 1
    splits = -(-longest // split_keys) if split_keys else 0
    return HostTiles(np.array(tiles, dtype=np.int32), positions, rows, splits, split_keys)


class _Packer:
    """Arrays laid end to end in one int32 buffer, each starting on 64 bytes: one copy, views of one alignment."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._parts: list[np.ndarray] = []
        self._length = 0
        self._sent = torch.empty(0, dtype=torch.int32)

    def add(self, part: np.ndarray) -> tuple[int, tuple[int, ...]]:
        """Take an array; returns where it will lie."""
        start, padding = self._length, -part.size % 16
        self._parts.append(np.concatenate((part.ravel(), np.zeros(padding, dtype=np.int64))).astype(np.int32))
        self._length += part.size + padding
        return start, part.shape

    def add_set(
        self, made: HostTiles
    ) -> tuple[tuple[int, tuple[int, ...]], tuple[int, tuple[int, ...]], HostTiles]:
        """Take a set of tiles."""
        return self.add(made.tiles), self.add(made.positions), made

    def send(self) -> None:
        """One copy to the device."""
        self._sent = torch.from_numpy(np.concatenate(self._parts)).to(self._device)

    def view(self, where: tuple[int, tuple[int, ...]]) -> torch.Tensor:
        """An array after `send`."""
        start, shape = where
        return self._sent[start : start + int(np.prod(shape))].view(shape)

    def view_set(
        self, where: tuple[tuple[int, tuple[int, ...]], tuple[int, tuple[int, ...]], HostTiles]
    ) -> TileSet:
        """A set of tiles after `send`."""
        tiles, positions, made = where
        return TileSet(self.view(tiles), self.view(positions), made.rows, made.splits, made.split_keys)
