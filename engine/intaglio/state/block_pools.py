"""The KV blocks of all pool groups together: every request holds as many blocks in each group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from intaglio.state.block_pool import BlockPool, BlockPoolError, BlockState, PoolExhaustedError, PoolGroup


class BlockPools:
    """The pools of all groups; every request holds as many blocks in each. Groups share one block_tokens."""

    def __init__(self, groups: Sequence[PoolGroup]) -> None:
        if not groups or len({(group.blocks, group.block_tokens) for group in groups}) != 1:
            raise BlockPoolError("pool groups must be given and agree in blocks and block_tokens")
        self.pools = tuple(BlockPool(group) for group in groups)
        self.block_tokens = groups[0].block_tokens
        self.total = groups[0].blocks
        # Gives up cached blocks until so many are free, for this tenant; set by the cache that knows them.
        self.reclaim: Callable[[int, str], None] | None = None

    @property
    def free(self) -> int:
        """Blocks that every group can hand out now."""
        return min(pool.free for pool in self.pools)

    @property
    def available(self) -> int:
        """Blocks that every group can hand out once cached ones are given up."""
        return min(pool.free + pool.count(BlockState.CACHED) for pool in self.pools)

    @property
    def cached(self) -> int:
        """Blocks that are kept for reuse alone, in the group with most of them."""
        return max(pool.count(BlockState.CACHED) for pool in self.pools)

    GAUGES = ("kv_blocks_used", "kv_blocks_cached", "kv_blocks_total", "kv_bytes_used")

    def gauges(self) -> dict[str, int]:
        """What is held now by the names of GAUGES: blocks in the group with most of them, bytes in all."""
        used = cached = size = 0
        for pool in self.pools:
            held = pool.occupied
            used, cached = max(used, held), max(cached, pool.count(BlockState.CACHED))
            size += held * pool.group.block_bytes
        return dict(zip(self.GAUGES, (used, cached, self.total, size), strict=True))

    @property
    def occupied(self) -> int:
        """Blocks held by somebody, in the fullest group."""
        return max(pool.occupied for pool in self.pools)

    @property
    def occupied_bytes(self) -> int:
        """Bytes of all the groups' held blocks."""
        return sum(pool.occupied * pool.group.block_bytes for pool in self.pools)

    @property
    def held_bytes(self) -> int:
        """Bytes of all the groups' blocks that are not free: held by somebody, or kept for reuse."""
        return sum((pool.total - pool.free) * pool.group.block_bytes for pool in self.pools)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in every group."""
        return sum(pool.group.block_bytes for pool in self.pools)

    @property
    def allocated(self) -> int:
        """Blocks ever handed out."""
        return sum(pool.allocated for pool in self.pools)

    @property
    def freed(self) -> int:
        """Blocks ever freed."""
        return sum(pool.freed for pool in self.pools)

    @property
    def capacity_tokens(self) -> int:
        """Most tokens that one request alone can hold."""
        return self.total * self.block_tokens

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)

    def make_room(self, count: int, tenant: str = "") -> None:
        """See to `count` free blocks in each group, giving up cached ones. Raises PoolExhaustedError."""
        if count > self.free and self.reclaim is not None:
            self.reclaim(count, tenant)
        if count > self.free:
            raise PoolExhaustedError(
                f"{count} blocks asked for, {self.free} of {self.total} free", field="kv_cache.blocks"
            )

    def allocate(
        self, count: int, tables: Sequence[Sequence[int]] = (), tenant: str = ""
    ) -> tuple[tuple[int, ...], ...]:
        """`count` blocks of each group to follow those of `tables`, all or none. Raises PoolExhaustedError.

        tenant: whose cached blocks go first where the cache cares (see PrefixCache).
        """
        self.make_room(count, tenant)
        ends: Sequence[int | None] = [table[-1] for table in tables] or [None] * len(self.pools)
        return tuple(pool.allocate(count, after=end) for pool, end in zip(self.pools, ends))

    def generations(self, tables: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """The generation of every block, in the shape of `tables`."""
        return tuple(tuple(map(pool.generation, table)) for pool, table in zip(self.pools, tables))

    def release(self, tables: Sequence[Sequence[int]], *, hold_step: int | None = None) -> None:
        """Drop a request's reference to every block of its tables (see BlockPool.release)."""
        for pool, table in zip(self.pools, tables):
            pool.release(table, hold_step=hold_step)

    def share(self, tables: Sequence[Sequence[int]]) -> None:
        """Add a reference to every block of the tables (see BlockPool.share)."""
        for pool, table in zip(self.pools, tables):
            pool.share(table)

    def begin_import(self, count: int) -> tuple[tuple[int, ...], ...]:
        """Reserve `count` blocks of each group to be filled from outside, all or none. Raises PoolExhaustedError."""
        self.make_room(count)
        return tuple(pool.begin_import(count) for pool in self.pools)

    def end_import(self, tables: Sequence[Sequence[int]], *, valid: bool) -> None:
        """The blocks are filled: used if their contents are `valid`, else free (see BlockPool.end_import)."""
        for pool, table in zip(self.pools, tables):
            for block in table:
                pool.end_import(block, valid=valid)

    def end_step(self, step: int) -> int:
        """Free what was quarantined until the end of `step`, in all groups. Returns how many blocks."""
        return sum(pool.end_step(step) for pool in self.pools)

    def check_integrity(self, tables: Iterable[Sequence[Sequence[int]]]) -> None:
        """Check every group against all live requests' tables (see BlockPool.check_integrity)."""
        live = [table for table in tables if table]
        for index, pool in enumerate(self.pools):
            pool.check_integrity([table[index] for table in live])

    def unaccounted(self, tables: Iterable[Sequence[Sequence[int]]]) -> int:
        """The largest drift of a group against all references to blocks (see BlockPool.unaccounted)."""
        live = [table for table in tables if table]
        return max(pool.unaccounted([t[index] for t in live]) for index, pool in enumerate(self.pools))
