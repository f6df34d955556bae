"""Host memory as a second tier for KV: a preempted request's blocks go out and come back instead of being recomputed.

Policy alone, plain Python: which request holds which host slots, and what was noted of their contents. The bytes
move in the worker (see block_mover), within the steps that `Transfers` hands them to:

    swap_out   the victim's blocks are read by the next step before anything can write them, so they are free at once
    swap_in    new blocks are reserved (IMPORTING); no row names them before the copies were verified

A copy that failed, came short or late, or does not match its checksum means that its request recomputes. That is
counted, and is nobody else's matter.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial

from intaglio.intake.sequence import Sequence
from intaglio.intake.step_plan import BlockMove, MoveResult
from intaglio.state.block_pools import BlockPools
from intaglio.state.transfer import Transfers
from intaglio.telemetry import Telemetry

Told = Callable[[Sequence], None]


@dataclass(slots=True)
class _Held:
    """One request's blocks in host memory. state: "out" (going), "held" (there), "in" (coming back)."""

    slots: tuple[int, ...]
    state: str = "out"
    checksums: tuple[tuple[int, ...], ...] = ()
    tables: tuple[tuple[int, ...], ...] = ()
    generations: tuple[tuple[int, ...], ...] = ()
    dropped: bool = False


class HostTier:
    """`slots` host slots, each with room for one block of every pool group.

    arrived   told when a request has its blocks back; lost: when its copy cannot be used and it has to recompute
    """

    def __init__(self, slots: int, pools: BlockPools, transfers: Transfers, telemetry: Telemetry) -> None:
        self.slots = slots
        self._pools = pools
        self._transfers = transfers
        self._telemetry = telemetry
        self.arrived: Told = _nobody
        self.lost: Told = _nobody
        # Slots given back, the last one first, and the first that was never taken: a list of all would be long.
        self._free: list[int] = []
        self._fresh = 0
        self._held: dict[Sequence, _Held] = {}
        # Given up while their copies were on the way: the slots and blocks are taken until these have ended.
        self._dropped: list[_Held] = []

    @property
    def used(self) -> int:
        """Host slots in use."""
        return self._fresh - len(self._free)

    def holds(self, sequence: Sequence) -> bool:
        """Whether the request's blocks lie in host memory or are on their way there or back."""
        return sequence in self._held

    def ready(self, sequence: Sequence) -> bool:
        """Whether the request's blocks lie in host memory, so that swap_in can begin."""
        return self._held[sequence].state == "held"

    def tables(self) -> list[Items[Items[int]]]:
        """The blocks being filled, for the pool's integrity check."""
        return [held.tables for held in (*self._held.values(), *self._dropped) if held.tables]

    def swap_out(self, sequence: Sequence) -> bool:
        """Copy the request's computed blocks out with the next step; its tables may be released at once.

        False, and an event, if host memory has no room for them.
        """
        count = self._pools.blocks_for(sequence.computed)
        if not count:
            return False
        free = self.slots - self.used
        if count > free:
            self._telemetry.event("host_tier_full", request_id=sequence.request_id, blocks=count, free=free)
            return False
        held = _Held(tuple(self._slot() for _ in range(count)))
        self._held[sequence] = held
        tables, generations = sequence.block_tables, sequence.generations
        moves = [
            BlockMove("copy_out", group, tables[group][i], generations[group][i], slot)
            for group in range(len(tables))
            for i, slot in enumerate(held.slots)
        ]
        self._transfers.ask(sequence.request_id, moves, partial(self._went_out, sequence, held))
        return True

    def swap_in(self, sequence: Sequence, blocks: int) -> None:
        """Reserve `blocks` blocks and fill them with the next step; the request's tables follow when that is done.

        Raises PoolExhaustedError when they are not free.
        """
        held = self._held[sequence]
        held.tables = self._pools.begin_import(blocks)
        held.generations = self._pools.generations(held.tables)
        held.state = "in"
        moves = [
            BlockMove("copy_in", group, table[i], held.generations[group][i], slot, held.checksums[group][i])
            for group, table in enumerate(held.tables)
            for i, slot in enumerate(held.slots)
        ]
        self._transfers.ask(sequence.request_id, moves, partial(self._came_in, sequence, held))

    def drop(self, sequence: Sequence) -> None:
        """The request has ended: its slots are free once nothing is on its way to or from them."""
        held = self._held.pop(sequence, None)
        if held is None:
            return
        if held.state == "held":
            self._free.extend(held.slots)
        else:
            held.dropped = True
            self._dropped.append(held)

    def _slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._fresh += 1
        return self._fresh - 1

    def _went_out(self, sequence: Sequence, held: _Held, results: tuple[MoveResult, ...]) -> None:
        if self._end_dropped(held):
            return
        error = next((result.error for result in results if result.error), "")
        if error:
            self._give_up(sequence, held, error)
            return
        count = len(held.slots)
        held.checksums = tuple(
            tuple(result.checksum for result in results[start : start + count])
            for start in range(0, len(results), count)
        )
        held.state = "held"
        self._count("swap_out_blocks", results)

    def _came_in(self, sequence: Sequence, held: _Held, results: tuple[MoveResult, ...]) -> None:
        error = next((result.error for result in results if result.error), "")
        valid = not error and not held.dropped
        self._pools.end_import(held.tables, valid=valid)
        tables, held.tables = held.tables, ()
        if self._end_dropped(held):
            return
        if not valid:
            self._give_up(sequence, held, error)
            return
        sequence.grow(tables, held.generations)
        self._free.extend(held.slots)
        del self._held[sequence]
        self._count("swap_in_blocks", results)
        self.arrived(sequence)

    def _count(self, name: str, results: tuple[MoveResult, ...]) -> None:
        self._telemetry.counters.add(name, len(results) // len(self._pools.pools))
        self._telemetry.counters.add("swap_bytes", sum(result.nbytes for result in results))

    def _give_up(self, sequence: Sequence, held: _Held, error: str) -> None:
        self._free.extend(held.slots)
        del self._held[sequence]
        self._telemetry.counters.add("swap_failures")
        self._telemetry.event("swap_failed", request_id=sequence.request_id, message=error)
        self.lost(sequence)

    def _end_dropped(self, held: _Held) -> bool:
        if not held.dropped:
            return False
        self._dropped.remove(held)
        self._free.extend(held.slots)
        return True


def _nobody(sequence: Sequence) -> None:
    """Nobody asked to be told."""
