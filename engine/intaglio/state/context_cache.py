"""Which contexts' blocks lie on the device, and who may use them. Plain Python; files and bytes are elsewhere.

A context holds one reference to each of its blocks while it is resident; every request that names it shares them
and so keeps them for as long as it runs, whatever becomes of the context. A context that nobody runs on gives its
blocks back when others need them, and is loaded from its file when it is asked for again. Where that fails, its
requests recompute the document: the tokens are known, so the text is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from intaglio.intake.sequence import Sequence
from intaglio.intake.step_plan import BlockMove, MoveResult
from intaglio.state.block_pools import BlockPools
from intaglio.state.context_files import ContextRecord, payload
from intaglio.state.transfer import Transfers
from intaglio.telemetry import Telemetry


@dataclass(slots=True, eq=False)
class ContextEntry:
    """One context in use by this engine.

    users     live requests that named it, of which `readers` have shared its blocks; place: where its files lie
    tables    its blocks on the device, () when it is not resident; filling: those that a load is filling
    verified  its files were found whole; unusable: a load failed since, so that they are to be verified anew
    pinned    it is being saved, and must stay; gone: it was deleted or has expired
    """

    record: ContextRecord
    place: Path
    users: int = 0
    readers: set[Sequence] = field(default_factory=set)
    tables: tuple[tuple[int, ...], ...] = ()
    generations: tuple[tuple[int, ...], ...] = ()
    filling: tuple[tuple[int, ...], ...] = ()
    verified: bool = False
    unusable: bool = False
    pinned: bool = False
    gone: bool = False
    touched: int = 0


class ContextCache:
    """The device's side of the context cache. Used under the engine's lock.

    in_flight: the step that is being computed now, or None.
    """

    def __init__(
        self,
        pools: BlockPools,
        transfers: Transfers,
        telemetry: Telemetry,
        in_flight: Callable[[], int | None],
    ) -> None:
        self._pools = pools
        self._transfers = transfers
        self._telemetry = telemetry
        self._in_flight = in_flight
        self._entries: dict[tuple[str, str], ContextEntry] = {}
        # No longer to be found, but still in use.
        self._leaving: list[ContextEntry] = []
        self._clock = 0

    def find(self, tenant: str, context: str) -> ContextEntry | None:
        """The context as far as this engine has met it."""
        return self._entries.get((tenant, context))

    def enter(self, entry: ContextEntry) -> ContextEntry:
        """Make a context known; where another thread was faster, its entry counts."""
        return self._entries.setdefault((entry.record.tenant, entry.record.id), entry)

    def forget(self, entry: ContextEntry) -> None:
        """The context is not to be found any more. Its blocks go when the last request that named it has ended."""
        self._entries.pop((entry.record.tenant, entry.record.id), None)
        if not entry.gone:
            entry.gone = True
            self._leaving.append(entry)
            self._settle(entry)

    def named(self, sequence: Sequence, entry: ContextEntry) -> None:
        """A request was admitted that names the context."""
        sequence.context = entry
        entry.users += 1

    def ended(self, sequence: Sequence) -> None:
        """The request has ended."""
        entry, sequence.context = sequence.context, None
        if entry is not None:
            entry.users -= 1
            entry.readers.discard(sequence)
            self._settle(entry)

    def held(self, sequence: Sequence) -> int:
        """Resident blocks that the request would share instead of taking new ones."""
        entry = sequence.context
        return entry.record.blocks if entry is not None and entry.tables else 0

    def place(self, sequence: Sequence) -> bool:
        """Give a request that holds no blocks those of its context. False: they are being loaded, ask again later.

        The caller has made sure that as many blocks can be had as the request will take in all.
        """
        entry = sequence.context
        if entry is None or not entry.record.blocks:
            return True
        if entry.tables:
            self._share(sequence, entry)
            return True
        if entry.unusable or entry.gone:
            return True
        if not entry.filling:
            self._load(entry)
        return False

    def reclaim(self, count: int, keep: ContextEntry | None = None) -> None:
        """Free blocks of contexts that nobody runs on, least recently used first, until `count` blocks can be had."""
        idle = [e for e in self._all() if e.tables and e is not keep and not e.pinned and not self._read(e)]
        for entry in sorted(idle, key=lambda e: e.touched):
            if self._pools.available >= count:
                return
            self._release(entry)
            self._telemetry.counters.add("context_evictions")
            self._telemetry.event("context_evicted", context=entry.record.id, blocks=entry.record.blocks)

    def tables(self) -> list[Items[Items[int]]]:
        """Every context's references to blocks, for the pool's integrity check."""
        return [table for entry in self._all() for table in (entry.tables, entry.filling) if table]

    def _all(self) -> list[ContextEntry]:
        return [*self._entries.values(), *self._leaving]

    def _read(self, entry: ContextEntry) -> bool:
        """Whether a request computes with the context's blocks now; preempted ones have let go of them.

        References do not tell: with a prefix cache two contexts may hold the same blocks, and neither is in use.
        """
        first = entry.tables[0][0]
        return any(reader.block_tables and reader.block_tables[0][0] == first for reader in entry.readers)

    def _share(self, sequence: Sequence, entry: ContextEntry) -> None:
        self._clock += 1
        entry.touched = self._clock
        self._pools.share(entry.tables)
        sequence.grow(entry.tables, entry.generations)
        entry.readers.add(sequence)
        sequence.computed = entry.record.blocks * self._pools.block_tokens
        if not sequence.preemptions:
            sequence.cached_tokens = sequence.computed
            self._telemetry.counters.add("context_hit_tokens", sequence.computed)

    def _load(self, entry: ContextEntry) -> None:
        record = entry.record
        entry.filling = self._pools.begin_import(record.blocks)
        generations = self._pools.generations(entry.filling)
        moves = [
            BlockMove(
                "load", group, block, generations[group][i], i, checksums[i], str(payload(entry.place, group))
            )
            for group, (table, checksums) in enumerate(zip(entry.filling, record.checksums, strict=True))
            for i, block in enumerate(table)
        ]
        self._transfers.ask("", moves, partial(self._loaded, entry, generations))

    def _loaded(
        self, entry: ContextEntry, generations: tuple[tuple[int, ...], ...], results: tuple[MoveResult, ...]
    ) -> None:
        error = next((result.error for result in results if result.error), "")
        self._pools.end_import(entry.filling, valid=not error)
        tables, entry.filling = entry.filling, ()
        if error:
            entry.verified, entry.unusable = False, True
            self._telemetry.counters.add("context_load_failures")
            self._telemetry.event("context_load_failed", context=entry.record.id, message=error)
        else:
            entry.tables, entry.generations = tables, generations
            self._telemetry.counters.add("context_loads")
            self._telemetry.counters.add("context_load_bytes", sum(result.nbytes for result in results))
        self._settle(entry)

    def _settle(self, entry: ContextEntry) -> None:
        """Let go of a context that left and that nobody uses any more."""
        if not entry.gone or entry.users or entry.filling:
            return
        if entry.tables:
            self._release(entry)
        if entry in self._leaving:
            self._leaving.remove(entry)

    def _release(self, entry: ContextEntry) -> None:
        self._pools.release(entry.tables, hold_step=self._in_flight())
        entry.tables = entry.generations = ()
