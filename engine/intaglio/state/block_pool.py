"""Who owns which KV block: states, reference counts and generations of a pool, without touching any tensor.

A block is always in exactly one state:

    FREE         holds nothing
    USED         named by one or more block tables (its reference count)
    CACHED       named by none, but its contents are kept for reuse until evicted
    LEASED       used, and being read by a transfer or a copy: it outlives its last reference until the lease ends
    IMPORTING    reserved, and being filled by a transfer or a copy: no table may compute with it yet
    QUARANTINED  given up while a step that may still touch it is running: free once that step is over

Every reuse raises the block's generation, so that a block id remembered from before is recognised as stale.
Allocating and freeing a block take constant time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from intaglio.errors import IntaglioError


class BlockState(IntEnum):
    """See the module's description."""

    FREE = 0
    USED = 1
    CACHED = 2
    LEASED = 3
    IMPORTING = 4
    QUARANTINED = 5


class BlockPoolError(IntaglioError):
    """The pool's rules were broken: a double free, a stale generation, a transition that does not exist."""

    code = "block_pool"


class PoolExhaustedError(BlockPoolError):
    """Fewer free blocks than asked for; nothing was allocated."""

    code = "kv_exhausted"


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """What a pool is made of. block_bytes: bytes of one block over all the layers of the group."""

    name: str
    blocks: int
    block_tokens: int
    block_bytes: int


class BlockPool:
    """The blocks 0 .. blocks-1 of one pool group."""

    def __init__(self, group: PoolGroup) -> None:
        if group.blocks < 1:
            raise BlockPoolError(
                f"a pool needs at least one block, not {group.blocks}", field="kv_cache.blocks"
            )
        self.group = group
        self._state = [BlockState.FREE] * group.blocks
        self._references = [0] * group.blocks
        self._generation = [0] * group.blocks
        # Insertion order is a stack: block 0 leaves first, and the block freed last is reused first.
        self._free = dict.fromkeys(range(group.blocks - 1, -1, -1))
        self._count = [group.blocks, 0, 0, 0, 0, 0]
        self._quarantine: dict[int, list[int]] = {}
        self.allocated = 0
        self.freed = 0

    @property
    def total(self) -> int:
        """Number of blocks."""
        return self.group.blocks

    @property
    def free(self) -> int:
        """Number of blocks that `allocate` can hand out now."""
        return len(self._free)

    @property
    def occupied(self) -> int:
        """Number of blocks that hold something which somebody still needs: neither free nor merely cached."""
        return self.total - self._count[BlockState.FREE] - self._count[BlockState.CACHED]

    def count(self, state: BlockState) -> int:
        """Number of blocks in `state`."""
        return self._count[state]

    def state(self, block: int) -> BlockState:
        """The block's state."""
        return self._state[block]

    def references(self, block: int) -> int:
        """How many block tables name the block."""
        return self._references[block]

    def generation(self, block: int) -> int:
        """How often the block has been handed out."""
        return self._generation[block]

    def allocate(self, count: int, *, after: int | None = None) -> tuple[int, ...]:
        """Take `count` free blocks, each with one reference and a new generation; all or none.

        Where they are free, blocks that follow each other (and block `after`) are taken: neighbouring blocks
        can be read as one piece.
        """
        return self._take(count, BlockState.USED, after)

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block, which is used, leased or cached (a cached one becomes used)."""
        for block in blocks:
            self._require(block, BlockState.USED, BlockState.LEASED, BlockState.CACHED)
            if self._state[block] is BlockState.CACHED:
                self._move(block, BlockState.USED)
            self._references[block] += 1

    def release(self, blocks: Iterable[int], *, hold_step: int | None = None, keep: bool = False) -> None:
        """Drop one reference from each block. A block without references becomes

        quarantined until `end_step(hold_step)` if a step is running that may touch it, else cached if `keep`,
        else free; a leased one stays leased until its lease ends.
        """
        for block in reversed(tuple(blocks)):  # so that the first of them is the first to be reused
            self._require(block, BlockState.USED, BlockState.LEASED)
            if self._references[block] < 1:
                raise BlockPoolError(f"block {block} is released more often than it is referenced")
            self._references[block] -= 1
            if self._references[block] or self._state[block] is BlockState.LEASED:
                continue
            if hold_step is not None:
                self._quarantine.setdefault(hold_step, []).append(block)
                self._move(block, BlockState.QUARANTINED)
            elif keep:
                self._move(block, BlockState.CACHED)
            else:
                self._discard(block)

    def end_step(self, step: int) -> int:
        """Step `step` touches no block any more: free what was quarantined for it. Returns how many."""
        held = self._quarantine.pop(step, [])
        for block in held:
            self._require(block, BlockState.QUARANTINED)
            self._discard(block)
        return len(held)

    def evict(self, block: int) -> None:
        """Give up a cached block's contents."""
        self._require(block, BlockState.CACHED)
        self._discard(block)

    def lease(self, block: int) -> None:
        """Start reading a used block from outside the step loop."""
        self._require(block, BlockState.USED)
        self._move(block, BlockState.LEASED)

    def end_lease(self, block: int) -> None:
        """Stop reading it: used again, or free when nobody names it any more."""
        self._require(block, BlockState.LEASED)
        if self._references[block]:
            self._move(block, BlockState.USED)
        else:
            self._discard(block)

    def begin_import(self, count: int) -> tuple[int, ...]:
        """Reserve `count` free blocks to be filled from outside, each with one reference; all or none."""
        return self._take(count, BlockState.IMPORTING, None)

    def end_import(self, block: int, *, valid: bool) -> None:
        """The block is filled: used if its contents are `valid`, else free and its reference gone."""
        self._require(block, BlockState.IMPORTING)
        if valid:
            self._move(block, BlockState.USED)
        else:
            self._references[block] = 0
            self._discard(block)

    def verify(self, blocks: Sequence[int], generations: Sequence[int]) -> None:
        """Raise BlockPoolError unless every block still is what it was when its generation was noted."""
        if len(blocks) != len(generations):
            raise BlockPoolError(f"{len(blocks)} blocks come with {len(generations)} generations")
        for block, generation in zip(blocks, generations):
            if self._generation[block] != generation or self._references[block] < 1:
                raise BlockPoolError(
                    f"block {block} is stale: generation {generation} was noted, {self._generation[block]} holds"
                )

    def check_integrity(self, tables: Iterable[Sequence[int]] = ()) -> None:
        """Raise BlockPoolError unless counts, states, references and the given block tables agree.

        `tables`: the block tables of every live request; their mentions of a block must equal its references.
        """
        counted = Counter(self._state)
        if [counted[state] for state in BlockState] != self._count or sum(self._count) != self.total:
            raise BlockPoolError(f"block counts drifted: {self._count} noted, {dict(counted)} found")
        free = {block for block, state in enumerate(self._state) if state is BlockState.FREE}
        if set(self._free) != free:
            raise BlockPoolError("the free list and the free blocks differ")
        held = [block for blocks in self._quarantine.values() for block in blocks]
        if Counter(held) != Counter(b for b, s in enumerate(self._state) if s is BlockState.QUARANTINED):
            raise BlockPoolError("the quarantine list and the quarantined blocks differ")
        named = Counter(block for table in tables for block in table)
        for block, state in enumerate(self._state):
            if self._references[block] != named[block]:
                raise BlockPoolError(
                    f"block {block} has {self._references[block]} references, tables name it {named[block]} times"
                )
            owned = state in (BlockState.USED, BlockState.IMPORTING)
            if state is not BlockState.LEASED and owned != (self._references[block] > 0):
                raise BlockPoolError(
                    f"block {block} is {state.name} with {self._references[block]} references"
                )

    def _take(self, count: int, state: BlockState, after: int | None) -> tuple[int, ...]:
        if count < 0:
            raise BlockPoolError(f"cannot allocate {count} blocks")
        if count > len(self._free):
            raise PoolExhaustedError(
                f"{count} blocks asked for, {len(self._free)} of {self.total} free", field="kv_cache.blocks"
            )
        taken = []
        for _ in range(count):
            after = self._next_free(after)
            self._require(after, BlockState.FREE)
            self._move(after, state)
            self._references[after] = 1
            self._generation[after] += 1
            taken.append(after)
        self.allocated += count
        return tuple(taken)

    def _next_free(self, after: int | None) -> int:
        if after is not None and after + 1 in self._free:
            del self._free[after + 1]
            return after + 1
        return self._free.popitem()[0]

    def _discard(self, block: int) -> None:
        self._move(block, BlockState.FREE)
        self._free[block] = None
        self.freed += 1

    def _move(self, block: int, state: BlockState) -> None:
        self._count[self._state[block]] -= 1
        self._count[state] += 1
        self._state[block] = state

    def _require(self, block: int, *states: BlockState) -> None:
        if not 0 <= block < self.total:
            raise BlockPoolError(f"block {block} is outside 0..{self.total - 1}")
        if self._state[block] not in states:
            wanted = " or ".join(state.name for state in states)
            raise BlockPoolError(f"block {block} is {self._state[block].name}, not {wanted}")


class BlockPools:
    """The pools of all groups; every request holds as many blocks in each. Groups share one block_tokens."""

    def __init__(self, groups: Sequence[PoolGroup]) -> None:
        if not groups or len({(group.blocks, group.block_tokens) for group in groups}) != 1:
            raise BlockPoolError("pool groups must be given and agree in blocks and block_tokens")
        self.pools = tuple(BlockPool(group) for group in groups)
        self.block_tokens = groups[0].block_tokens
        self.total = groups[0].blocks

    @property
    def free(self) -> int:
        """Blocks that every group can hand out now."""
        return min(pool.free for pool in self.pools)

    @property
    def occupied(self) -> int:
        """Blocks held by somebody, in the fullest group."""
        return max(pool.occupied for pool in self.pools)

    @property
    def occupied_bytes(self) -> int:
        """Bytes of all the groups' held blocks."""
        return sum(pool.occupied * pool.group.block_bytes for pool in self.pools)

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

    def allocate(self, count: int, tables: Sequence[Sequence[int]] = ()) -> tuple[tuple[int, ...], ...]:
        """`count` blocks of each group to follow those of `tables`, all or none. Raises PoolExhaustedError."""
        if count > self.free:
            raise PoolExhaustedError(
                f"{count} blocks asked for, {self.free} of {self.total} free", field="kv_cache.blocks"
            )
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
        if count > self.free:
            raise PoolExhaustedError(
                f"{count} blocks asked for, {self.free} of {self.total} free", field="kv_cache.blocks"
            )
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
