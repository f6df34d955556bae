"""Moves blocks between a KV store and host memory or files, a step's moves at a time, and proves what arrived.

A worker calls `start` before its rows and `finish` after them. What is read out is read before anything is
filled and before any row writes; what is filled is used by later steps alone, once its checksum was verified.
A move that fails in any way is its own result's error and leaves its block unreadable, never half valid.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from intaglio.errors import WorkerError
from intaglio.intake.step_plan import BlockMove, MoveResult
from intaglio.state.kv_store import KVStore

READS = ("copy_out", "save")
FILLS = ("copy_in", "load")

Planes = Sequence[torch.Tensor]


class CopyStream(Protocol):
    """Where copies run: inline, or beside the computation on a device.

    copy    begin copying `source` over `target`, of equal size
    fence   all that was begun comes before whatever is begun or computed from now on
    wait    return when all that was begun is done, so that the host may read it
    """

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None: ...

    def fence(self) -> None: ...

    def wait(self) -> None: ...


class InlineStream:
    """Copies at once, on the calling thread."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See CopyStream.copy."""
        target.copy_(source)

    def fence(self) -> None:
        """Nothing is ever under way."""

    def wait(self) -> None:
        """Nothing is ever under way."""


@dataclass(slots=True)
class _Begun:
    """A move under way: the block's bytes, the host's bytes, and the checksum of what was read out."""

    move: BlockMove
    block: Planes = ()
    host: Planes = ()
    checksum: int = 0
    error: str = ""


class BlockMover:
    """The moves of one worker.

    stores   one per pool group. host_slots: blocks that host memory holds, each slot with room in every group;
             untouched slots take no memory.
    fault    tests only: asked for every move, its answer damages that move: "fail", "short", "late", "flip"
    """

    def __init__(
        self,
        stores: Sequence[KVStore],
        host_slots: int,
        *,
        stream: CopyStream | None = None,
        pinned: bool = False,
    ) -> None:
        self._stores = tuple(stores)
        self._slots = host_slots
        self._host = tuple(
            torch.empty((host_slots, store.block_bytes), dtype=torch.uint8, pin_memory=pinned)
            for store in stores
        )
        self._stream = stream or InlineStream()
        self._begun: list[_Begun] = []
        self.fault: Callable[[BlockMove], str] | None = None

    def start(self, moves: Sequence[BlockMove]) -> None:
        """Begin a step's moves: everything read out first, then everything filled."""
        self._begun = [_Begun(move) for move in moves]
        for kinds, begin in ((READS, self._read_out), (FILLS, self._fill)):
            for begun in self._begun:
                if begun.move.kind in kinds:
                    self._try(begun, begin)
            if moves:
                self._stream.fence()
        for begun in self._begun:
            if begun.move.kind not in READS + FILLS:
                begun.error = f"unknown kind of move '{begun.move.kind}'"

    def finish(self) -> tuple[MoveResult, ...]:
        """Wait for the step's moves and say what became of them, in their order."""
        if self._begun:
            self._stream.wait()
        results = []
        for begun in self._begun:
            if not begun.error:
                self._try(begun, self._arrived)
            if begun.error and begun.move.kind in FILLS:
                self._forget(begun.move)
            moved = 0 if begun.error else sum(plane.nbytes for plane in begun.block)
            results.append(MoveResult(moved, begun.checksum, begun.error))
        self._begun = []
        return tuple(results)

    def _read_out(self, begun: _Begun) -> None:
        move = begun.move
        store = self._store(move)
        if not store.holds(move.block, move.generation):
            raise WorkerError(f"block {move.block} does not hold generation {move.generation} any more")
        begun.block = store.planes(move.block)
        begun.host = _cut(self._buffer(move), begun.block)
        if _on_host(store):  # of the source, so that a copy that lost something is seen when it returns
            begun.checksum = checksum(begun.block)
        self._copy(begun, begun.host, begun.block)

    def _fill(self, begun: _Begun) -> None:
        move = begun.move
        store = self._store(move)
        store.adopt(move.block, None)
        begun.block = store.planes(move.block)
        buffer = self._buffer(move)
        if move.kind == "load":
            _read_file(move, buffer)
        begun.host = _cut(buffer, begun.block)
        self._copy(begun, begun.block, begun.host)

    def _arrived(self, begun: _Begun) -> None:
        """What only the end of the copies shows: checksums, and the file of a save."""
        move, store = begun.move, self._store(begun.move)
        if move.kind in READS:
            if not _on_host(store):
                begun.checksum = checksum(begun.host)
            if move.kind == "save":
                if checksum(begun.host) != begun.checksum:
                    raise WorkerError("the copy lost something on its way to the file")
                _write_file(move, begun.host)
            return
        begun.checksum = checksum(begun.block if _on_host(store) else begun.host)
        if begun.checksum != move.checksum:
            raise WorkerError(
                f"block {move.block} arrived damaged: checksum {begun.checksum:08x}, noted {move.checksum:08x}"
            )
        store.adopt(move.block, move.generation)

    def _copy(self, begun: _Begun, targets: Planes, sources: Planes) -> None:
        fault = self.fault(begun.move) if self.fault is not None else ""
        if fault == "fail":
            raise WorkerError("the copy failed")
        if fault == "late":
            raise WorkerError("the copy was not there in time")
        pairs = list(zip(targets, sources, strict=True))
        half = len(pairs) // 2 if fault == "short" else len(pairs)
        for target, source in pairs[:half]:
            self._stream.copy(target, source)
        for target, _ in pairs[half:]:
            target.fill_(0xA5)  # fresh memory may by chance hold the very bytes that do not arrive
        if fault == "flip":
            self._stream.wait()
            targets[0][0] ^= 1

    def _try(self, begun: _Begun, action: Callable[[_Begun], None]) -> None:
        try:
            action(begun)
        except (WorkerError, RuntimeError, OSError, ValueError) as error:
            begun.error = f"{begun.move.kind} of block {begun.move.block}: {error}"

    def _forget(self, move: BlockMove) -> None:
        if 0 <= move.group < len(self._stores) and 0 <= move.block < self._stores[move.group].blocks:
            self._stores[move.group].adopt(move.block, None)

    def _store(self, move: BlockMove) -> KVStore:
        if not 0 <= move.group < len(self._stores):
            raise WorkerError(f"there is no pool group {move.group}")
        return self._stores[move.group]

    def _buffer(self, move: BlockMove) -> torch.Tensor:
        """The host's bytes of a move: its slot, or room of its own for a file."""
        if move.path:
            return torch.empty(self._store(move).block_bytes, dtype=torch.uint8)
        if not 0 <= move.slot < self._slots:
            raise WorkerError(f"host slot {move.slot} lies outside 0..{self._slots - 1}")
        return self._host[move.group][move.slot]


def checksum(planes: Planes) -> int:
    """zlib.crc32 over the bytes of uint8 tensors in host memory, in order."""
    value = 0
    for plane in planes:
        value = zlib.crc32(_bytes(plane), value)
    return value


def _on_host(store: KVStore) -> bool:
    return store.data.device.type == "cpu"


def _cut(buffer: torch.Tensor, planes: Planes) -> Planes:
    pieces: Planes = buffer.split([plane.numel() for plane in planes])
    return pieces


def _bytes(plane: torch.Tensor) -> memoryview:
    return plane.numpy().data


def _read_file(move: BlockMove, buffer: torch.Tensor) -> None:
    with Path(move.path).open("rb", buffering=0) as file:
        got = os.preadv(file.fileno(), [_bytes(buffer)], move.slot * buffer.nbytes)
    if got != buffer.nbytes:
        raise WorkerError(f"the file ends after {got} of {buffer.nbytes} bytes")


def _write_file(move: BlockMove, planes: Planes) -> None:
    size = sum(plane.nbytes for plane in planes)
    target = os.open(move.path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        wrote = os.pwritev(target, [_bytes(plane) for plane in planes], move.slot * size)
    finally:
        os.close(target)
    if wrote != size:
        raise WorkerError(f"the disk took {wrote} of {size} bytes")
