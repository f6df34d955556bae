"""The block pool against a plain model of it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from intaglio.state.block_pool import BlockPool, BlockPoolError, BlockState, PoolExhaustedError, PoolGroup
from intaglio.state.block_pools import BlockPools

S = BlockState


def pool_of(blocks: int) -> BlockPool:
    return BlockPool(PoolGroup("kv", blocks, 4, 64))


class PoolMachine(RuleBasedStateMachine):
    """The model: a dict of states, a dict of references, a list of block tables, the steps that hold blocks."""

    @initialize(blocks=st.integers(1, 9))
    def start(self, blocks: int) -> None:
        self.pool = pool_of(blocks)
        self.state = dict.fromkeys(range(blocks), S.FREE)
        self.generation = dict.fromkeys(range(blocks), 0)
        self.tables: list[list[int]] = []
        self.held: dict[int, list[int]] = {}
        self.importing: list[int] = []
        self.handed_out = 0
        self.kept: set[int] = set()
        self.told: list[int] = []
        self.pool.on_cached = self.told.append

    def named(self, block: int) -> int:
        return sum(table.count(block) for table in self.tables) + self.importing.count(block)

    def rest(self, block: int) -> None:
        """Nobody names the block any more: it is cached, and this told, if it is to be kept."""
        self.state[block] = S.CACHED if block in self.kept else S.FREE
        if block in self.kept:
            assert self.told.pop(0) == block

    def of(self, state: BlockState) -> list[int]:
        return [block for block, own in self.state.items() if own is state]

    def took(self, blocks: tuple[int, ...], state: BlockState) -> None:
        assert len(set(blocks)) == len(blocks)
        for block in blocks:
            assert self.state[block] is S.FREE
            self.state[block] = state
            self.generation[block] += 1
        self.handed_out += len(blocks)

    @rule(count=st.integers(0, 5), near=st.booleans())
    def allocate(self, count: int, near: bool) -> None:
        after = self.tables[-1][-1] if near and self.tables and self.tables[-1] else None
        if count > len(self.of(S.FREE)):
            with pytest.raises(PoolExhaustedError):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count, after=after)
        assert len(blocks) == count
        if count and after is not None and self.state.get(after + 1) is S.FREE:
            assert blocks[0] == after + 1
        self.took(blocks, S.USED)
        self.tables.append(list(blocks))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.pool.share(table)
        self.tables.append(list(table))

    @precondition(lambda self: self.of(S.CACHED))
    @rule(data=st.data())
    def hit_a_cached_block(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.of(S.CACHED)))
        self.pool.share([block])
        self.state[block] = S.USED
        self.tables.append([block])

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), hold=st.booleans(), step=st.integers(1, 3))
    def release(self, data: st.DataObject, hold: bool, step: int) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table, hold_step=step if hold else None)
        for block in reversed(table):  # the last block of a table is let go first
            if self.state[block] is not S.USED or self.named(block):
                continue
            if hold:
                self.state[block] = S.QUARANTINED
                self.held.setdefault(step, []).append(block)
            else:
                self.rest(block)

    @precondition(lambda self: self.of(S.USED))
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.of(S.USED)))
        self.pool.keep(block)
        self.kept.add(block)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.kept)))
        self.pool.forget(block)
        self.kept.discard(block)
        if self.state[block] is S.CACHED:
            self.state[block] = S.FREE

    @rule(step=st.integers(1, 3))
    def end_step(self, step: int) -> None:
        blocks = self.held.pop(step, [])
        assert self.pool.end_step(step) == len(blocks)
        for block in blocks:
            self.rest(block)

    @precondition(lambda self: self.of(S.CACHED))
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.of(S.CACHED)))
        self.pool.evict(block)
        self.state[block] = S.FREE
        self.kept.discard(block)

    @precondition(lambda self: self.of(S.USED))
    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.of(S.USED)))
        self.pool.lease(block)
        self.state[block] = S.LEASED

    @precondition(lambda self: self.of(S.LEASED))
    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.of(S.LEASED)))
        self.pool.end_lease(block)
        if self.named(block):
            self.state[block] = S.USED
        else:
            self.rest(block)

    @rule(count=st.integers(1, 3))
    def begin_import(self, count: int) -> None:
        if count <= len(self.of(S.FREE)):
            blocks = self.pool.begin_import(count)
            self.took(blocks, S.IMPORTING)
            self.importing.extend(blocks)

    @precondition(lambda self: self.importing)
    @rule(data=st.data(), valid=st.booleans())
    def end_import(self, data: st.DataObject, valid: bool) -> None:
        block = self.importing.pop(data.draw(st.integers(0, len(self.importing) - 1)))
        self.pool.end_import(block, valid=valid)
        self.state[block] = S.USED if valid else S.FREE
        if valid:
            self.tables.append([block])

    @rule(data=st.data())
    def misuse_is_refused_and_changes_nothing(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(-2, len(self.state) + 1))
        state = self.state.get(block)
        calls = {
            "release": (lambda: self.pool.release([block]), (S.USED, S.LEASED)),
            "share": (lambda: self.pool.share([block]), (S.USED, S.LEASED, S.CACHED)),
            "evict": (lambda: self.pool.evict(block), (S.CACHED,)),
            "keep": (lambda: self.pool.keep(block), (S.USED, S.LEASED)),
            "lease": (lambda: self.pool.lease(block), (S.USED,)),
            "end_lease": (lambda: self.pool.end_lease(block), (S.LEASED,)),
            "end_import": (lambda: self.pool.end_import(block, valid=True), (S.IMPORTING,)),
        }
        call, allowed = calls[data.draw(st.sampled_from(sorted(calls)))]
        if state not in allowed:
            with pytest.raises(BlockPoolError):
                call()

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert not self.told
        for block, state in self.state.items():
            assert self.pool.state(block) is state
            assert self.pool.references(block) == self.named(block)
            assert self.pool.generation(block) == self.generation[block]
        assert [self.pool.count(state) for state in S] == [len(self.of(state)) for state in S]
        assert sum(self.pool.count(state) for state in S) == self.pool.total
        assert self.pool.free == len(self.of(S.FREE))
        assert self.pool.occupied == len(self.state) - len(self.of(S.FREE)) - len(self.of(S.CACHED))
        assert self.pool.allocated == self.handed_out == self.pool.freed + len(self.state) - self.pool.free
        self.pool.check_integrity([*self.tables, self.importing])


PoolMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, derandomize=True, deadline=None, database=None
)
TestPool = PoolMachine.TestCase


def test_a_block_of_an_earlier_generation_is_stale() -> None:
    pool = pool_of(1)
    (block,) = pool.allocate(1)
    noted = pool.generation(block)
    pool.verify([block], [noted])
    pool.release([block])
    with pytest.raises(BlockPoolError, match="stale"):
        pool.verify([block], [noted])
    assert pool.allocate(1) == (block,)
    with pytest.raises(BlockPoolError, match=f"generation {noted} was noted, {noted + 1} holds"):
        pool.verify([block], [noted])


def test_double_free_is_an_error_and_not_a_second_owner() -> None:
    pool = pool_of(2)
    table = pool.allocate(1)
    pool.release(table)
    with pytest.raises(BlockPoolError, match="FREE, not USED or LEASED"):
        pool.release(table)
    assert (pool.free, pool.freed) == (2, 1)


@pytest.mark.parametrize("damage", ["reference", "table", "free list", "count", "quarantine"])
def test_the_integrity_check_sees_each_kind_of_drift(damage: str) -> None:
    pool = pool_of(4)
    table = pool.allocate(2)
    pool.check_integrity([table])
    if damage == "reference":
        pool._references[table[0]] += 1
    elif damage == "table":
        table = (*table, table[0])
    elif damage == "free list":
        pool._free.popitem()
    elif damage == "count":
        pool._count[S.FREE] -= 1
    else:
        pool._quarantine[7] = [table[0]]
    with pytest.raises(BlockPoolError):
        pool.check_integrity([table])


def test_blocks_are_handed_out_in_neighbourhood() -> None:
    pool = pool_of(8)
    first, second = pool.allocate(2), pool.allocate(2)
    assert first == (0, 1)
    assert second == (2, 3)
    assert pool.allocate(1, after=3) == (4,)
    assert pool.allocate(1, after=1) == (5,)  # 2 is taken
    pool.release(first)
    assert pool.allocate(2) == first


def test_groups_are_allocated_together_or_not_at_all() -> None:
    pools = BlockPools([PoolGroup("a", 3, 4, 10), PoolGroup("b", 3, 4, 30)])
    tables = pools.allocate(2)
    assert [len(table) for table in tables] == [2, 2]
    assert (pools.occupied, pools.occupied_bytes, pools.block_bytes) == (2, 80, 40)
    with pytest.raises(PoolExhaustedError):
        pools.allocate(2)
    assert (pools.free, pools.occupied) == (1, 2)
    pools.check_integrity([tables])
    pools.release(tables, hold_step=5)
    assert (pools.free, pools.occupied) == (1, 2)
    assert pools.end_step(4) == 0
    assert pools.end_step(5) == 4
    assert (pools.free, pools.capacity_tokens, pools.blocks_for(9)) == (3, 12, 3)


def test_groups_must_agree_in_size() -> None:
    with pytest.raises(BlockPoolError):
        BlockPools([PoolGroup("a", 3, 4, 10), PoolGroup("b", 2, 4, 30)])
    with pytest.raises(BlockPoolError):
        BlockPools([])
    with pytest.raises(BlockPoolError):
        pool_of(0)


def test_allocation_time_does_not_grow_with_the_pool() -> None:
    """Counted in operations, not seconds: the free list is never scanned."""

    class Counting(dict[int, None]):
        scans = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            Counting.scans += 1
            return super().__iter__()

    pool = pool_of(10_000)
    pool._free = Counting(pool._free)
    Counting.scans = 0
    for _ in range(100):
        pool.release(pool.allocate(50, after=17))
    assert Counting.scans == 0
    assert pool.allocated == 5000
