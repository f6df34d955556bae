"""Paged storage of keys and values on one device: plain tensors addressed by slot.

Slot s of a pool group is token s % block_tokens of block s // block_tokens. Keys and values of a token lie side by
side, with the parameters of a quantised format before them, so that one copy stores all of it and a run of
consecutive blocks is a plain view.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from intaglio.errors import WorkerError
from intaglio.state.kv_codec import KVCodec, codec_of

# A row's block table and generations, and its tokens [0, context) to read and [context, end) to write.
Claim = tuple[Sequence[int], Sequence[int], int, int]

# From this many blocks on a step's tables are checked together, and from that many by arrays: numpy's code has to come
# back from memory in every step, where the kernels have just streamed the weights through the caches.
_MANY_BLOCKS = 256
_ARRAY_BLOCKS = 2048
# Up to this many slots a plain loop is quicker than arrays.
_FEW_SLOTS = 8


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """Layers that share one block table: `layers` of them, each with kv_heads x head_dim keys and values.

    `dtype` is that of what is stored of each number: of its code where the format is quantised (see kv_codec).
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Exact bytes of one token's keys and values over the group's layers."""
        return self.layers * self.codec.format.token_bytes(self.kv_heads, self.head_dim)

    @property
    def codec(self) -> KVCodec:
        return codec_of(self.dtype)


@dataclass(frozen=True, slots=True)
class SlotMap:
    """Where the tokens of a step go, prepared once and used by every layer.

    `rows` picks the source tokens that have a slot (None: all, in order). Either `targets` are views of the
    consecutive slots, one per layer, or `index` names the slots.
    """

    count: int
    rows: torch.Tensor | None
    targets: tuple[torch.Tensor, ...] | None
    index: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class KVRun:
    """Keys and values of one row's visible tokens: per layer [kv_heads, length, head_dim] views, or the slots
    to gather when its blocks are not consecutive. `stored`: per layer the consecutive records to decode."""

    length: int
    keys: tuple[torch.Tensor, ...] | None
    values: tuple[torch.Tensor, ...] | None
    index: torch.Tensor | None
    stored: tuple[torch.Tensor, ...] | None = None


class KVStore:
    """Storage of one pool group. Block generations are kept beside the data, so that a stale table is seen."""

    def __init__(self, group: PoolGroup, blocks: int, block_tokens: int, device: torch.device) -> None:
        self.group = group
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._device = device
        self.codec = group.codec
        shape = (group.layers, blocks * block_tokens, *self.codec.token_shape(group.kv_heads, group.head_dim))
        # Left as it comes: what was not written is never read, and untouched pages cost no memory.
        self.data = torch.empty(shape, dtype=self.codec.storage, device=device)
        self._layer_views = self.data.unbind(0)
        self._generations: list[int | None] = [None] * blocks
        self._stamps = np.full(blocks, -1, dtype=np.int64)  # the same as an array, -1 for None

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self.group.bytes_per_token

    @property
    def nbytes(self) -> int:
        """Exact bytes held by the store."""
        return self.data.nbytes

    def claim(self, table: Sequence[int], generations: Sequence[int], context: int, end: int) -> str:
        """Check a row's blocks before a step that reads tokens [0, context) and writes [context, end).

        Blocks that hold context must carry the generation they were written under; blocks that start in
        this step take the plan's. Returns "" or what is wrong.
        """
        needed = -(-end // self.block_tokens)
        if len(table) < needed or len(generations) != len(table):
            return f"block table of {len(table)} blocks and {len(generations)} generations cannot hold {end} tokens"
        if needed and not (min(table[:needed]) >= 0 and max(table[:needed]) < self.blocks):
            return f"block table names a block outside 0..{self.blocks - 1}"
        written = -(-context // self.block_tokens)
        known = self._generations
        for block, generation in zip(table[:written], generations[:written], strict=True):
            if known[block] != generation:
                return f"block {block} is stale: generation {known[block]}, planned {generation}"
        for block, generation in zip(table[written:needed], generations[written:needed], strict=True):
            self.adopt(block, generation)
        return ""

    def claim_all(self, rows: Sequence[Claim]) -> list[str]:
        """What `claim` says of every row of a step, in order.

        The long tables of rows that begin no block are checked together, after the others have taken theirs.
        """
        size = self.block_tokens
        said, settled = [""] * len(rows), []
        many = sum(len(row[0]) for row in rows) >= _MANY_BLOCKS
        for i, (table, generations, context, end) in enumerate(rows):
            fits = end <= len(table) * size and len(table) == len(generations)
            if many and fits and -(-context // size) == -(-end // size):
                settled.append(i)
            else:
                said[i] = self.claim(table, generations, context, end)
        if settled and not self._hold_all([rows[i] for i in settled]):
            for i in settled:
                said[i] = self.claim(*rows[i])
        return said

    def _hold_all(self, rows: Sequence[Claim]) -> bool:
        """Whether every block that holds context of these rows carries its generation."""
        used = [-(-context // self.block_tokens) for _, _, context, _ in rows]
        if sum(used) < _ARRAY_BLOCKS:
            return all(self._holds_table(row[0][:count], row[1][:count]) for row, count in zip(rows, used))
        blocks = _joined([row[0][:count] for row, count in zip(rows, used)], np.int32)
        if not len(blocks) or blocks.min() < 0 or blocks.max() >= self.blocks:
            return False
        wanted = _joined([row[1][:count] for row, count in zip(rows, used)], np.int64)
        return bool((self._stamps[blocks] == wanted).all())

    def _holds_table(self, blocks: Sequence[int], generations: Sequence[int]) -> bool:
        if not blocks or min(blocks) < 0 or max(blocks) >= self.blocks:
            return False
        return list(map(self._generations.__getitem__, blocks)) == list(generations)

    def slots(self, table: Sequence[int], start: int, end: int) -> list[int]:
        """Slots of positions [start, end) under a block table."""
        size, first = self.block_tokens, start // self.block_tokens
        if end - start <= _FEW_SLOTS:
            return [table[p // size] * size + p % size for p in range(start, end)]
        blocks = np.asarray(table[first : -(-end // size)], dtype=np.int64)
        every = (blocks[:, None] * size + np.arange(size)).ravel()
        numbers: list[int] = every[start - first * size : end - first * size].tolist()
        return numbers

    def map_slots(self, slots: Sequence[int]) -> SlotMap:
        """Prepare a store of len(slots) tokens. Slot -1 marks padding: that token goes nowhere at all.

        Raises WorkerError for any other slot outside the store.
        """
        kept = [i for i, slot in enumerate(slots) if slot != -1]
        used = [slots[i] for i in kept]
        if used and not (min(used) >= 0 and max(used) < self.blocks * self.block_tokens):
            raise WorkerError(f"a slot lies outside the store of {self.blocks} blocks; nothing was written")
        rows = None if len(kept) == len(slots) else torch.tensor(kept, dtype=torch.int64, device=self._device)
        if used and used[-1] - used[0] == len(used) - 1 and used == list(range(used[0], used[-1] + 1)):
            targets = self.data[:, used[0] : used[-1] + 1].unbind(0)
            return SlotMap(len(used), rows, targets, None)
        index = torch.tensor(used, dtype=torch.int64, device=self._device)
        return SlotMap(len(used), rows, None, index)

    def write(self, layer: int, where: SlotMap, keys_values: torch.Tensor) -> None:
        """Store [tokens, 2, kv_heads, head_dim] of one layer at the mapped slots, in the store's format."""
        source = keys_values if where.rows is None else keys_values.index_select(0, where.rows)
        if where.targets is not None:
            where.targets[layer].copy_(self.codec.encode(source) if self.codec.format.quantised else source)
        elif where.count:
            self._layer_views[layer].index_copy_(0, _index(where.index), self.codec.encode(source))

    def run(self, table: Sequence[int], length: int) -> KVRun:
        """The first `length` tokens of a row: views where its blocks are consecutive, else slots to gather.

        Nothing behind `length` is ever part of the run.
        """
        used = tuple(table[: -(-length // self.block_tokens)])
        first = used[0]
        if used == tuple(range(first, first + len(used))):
            start = first * self.block_tokens
            view = self.data[:, start : start + length]
            if self.codec.format.quantised:
                return KVRun(length, None, None, None, view.unbind(0))
            keys = view[:, :, 0].transpose(1, 2).unbind(0)
            values = view[:, :, 1].transpose(1, 2).unbind(0)
            return KVRun(length, keys, values, None)
        blocks = torch.tensor(used, dtype=torch.int64)
        slots = (blocks[:, None] * self.block_tokens + torch.arange(self.block_tokens)).flatten()[:length]
        return KVRun(length, None, None, slots.to(self._device))

    def read(self, layer: int, run: KVRun) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [kv_heads, length, head_dim] of one layer: fp32 where the format is quantised, else as
        stored."""
        if run.keys is not None and run.values is not None:
            return run.keys[layer], run.values[layer]
        if run.stored is not None:
            stored = run.stored[layer]
        else:
            stored = self._layer_views[layer].index_select(0, _index(run.index))
        tokens = self.codec.decode(stored, self.group.kv_heads, self.group.head_dim)
        return tokens[:, 0].transpose(0, 1), tokens[:, 1].transpose(0, 1)

    def holds(self, block: int, generation: int) -> bool:
        """Whether the block lies in the store and was written under this generation."""
        return 0 <= block < self.blocks and self._generations[block] == generation

    def adopt(self, block: int, generation: int | None) -> None:
        """The block was filled from outside under this generation; None: it holds nothing that may be read."""
        self._generations[block] = generation
        self._stamps[block] = -1 if generation is None else generation

    def planes(self, block: int) -> tuple[torch.Tensor, ...]:
        """All bytes of one block as uint8 views into the store, one per layer: what a copy of it must move.

        Together they are `block_bytes` long. Raises WorkerError for a block outside the store.
        """
        if not 0 <= block < self.blocks:
            raise WorkerError(f"block {block} lies outside 0..{self.blocks - 1}; nothing was moved")
        start = block * self.block_tokens
        piece = self.data[:, start : start + self.block_tokens]
        return piece.view(torch.uint8).flatten(1).unbind(0)

    def poison_free(self, blocks: Sequence[int]) -> None:
        """Fill blocks that nobody owns with NaN: whatever reads them afterwards shows it (for tests)."""
        for block in blocks:
            start = block * self.block_tokens
            self.data[:, start : start + self.block_tokens].fill_(self.codec.poison)


def _joined(parts: list[Sequence[int]], kind: type[np.signedinteger]) -> np.ndarray:
    """Sequences end to end; those of a planner are arrays of this kind already."""
    code = "i" if kind is np.int32 else "q"
    arrays = [part for part in parts if isinstance(part, array) and part.typecode == code]
    if len(arrays) == len(parts):
        return np.frombuffer(b"".join(arrays), dtype=kind)
    return np.fromiter((number for part in parts for number in part), dtype=kind)


def _index(index: torch.Tensor | None) -> torch.Tensor:
    if index is None:
        raise WorkerError("a slot map names neither views nor slots; rebuild the step's plan")
    return index
