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
from collections.abc import Callable, Iterable, Sequence
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
        self._kept: set[int] = set()
        self.on_cached: Callable[[int], None] | None = None
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

    def keep(self, block: int) -> None:
        """Without references the block is to become cached instead of free, and `on_cached` to be told."""
        self._require(block, BlockState.USED, BlockState.LEASED)
        self._kept.add(block)

    def forget(self, block: int) -> None:
        """Keep the block no longer: a cached one is free at once, any other when its last reference goes."""
        if self._state[block] is BlockState.CACHED:
            self.evict(block)
        else:
            self._kept.discard(block)

    def release(self, blocks: Iterable[int], *, hold_step: int | None = None) -> None:
        """Drop one reference from each block, the last one first. A block without references becomes

        quarantined until `end_step(hold_step)` if a step is running that may touch it, else cached if it is kept,
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
            else:
                self._rest(block)

    def end_step(self, step: int) -> int:
        """Step `step` touches no block any more: let go what was quarantined for it. Returns how many."""
        held = self._quarantine.pop(step, [])
        for block in held:
            self._require(block, BlockState.QUARANTINED)
            self._rest(block)
        return len(held)

    def evict(self, block: int) -> None:
        """Give up a cached block's contents."""
        self._require(block, BlockState.CACHED)
        self._kept.discard(block)
        self._discard(block)

    def lease(self, block: int) -> None:
        """Start reading a used block from outside the step loop."""
        self._require(block, BlockState.USED)
        self._move(block, BlockState.LEASED)

    def end_lease(self, block: int) -> None:
        """Stop reading it: used again, or cached or free when nobody names it any more."""
        self._require(block, BlockState.LEASED)
        if self._references[block]:
            self._move(block, BlockState.USED)
        else:
            self._rest(block)

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
        cached = {block for block, state in enumerate(self._state) if state is BlockState.CACHED}
        if not cached <= self._kept or self._kept & free:
            raise BlockPoolError("the blocks to keep and the cached blocks differ")
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

    def unaccounted(self, tables: Iterable[Sequence[int]]) -> int:
        """By how many blocks those in use and those that the tables name differ: a drift as a number."""
        owned = self._count[BlockState.USED] + self._count[BlockState.IMPORTING]
        return abs(owned - len({block for table in tables for block in table}))

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

    def _rest(self, block: int) -> None:
        """Nobody names the block any more."""
        if block not in self._kept:
            self._discard(block)
            return
        self._move(block, BlockState.CACHED)
        if self.on_cached is not None:
            self.on_cached(block)

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
