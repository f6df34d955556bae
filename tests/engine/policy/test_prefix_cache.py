"""The prefix cache against a plain model of it, and its keys: what they depend on and what they cost."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from intaglio.state.block_key import CacheIdentity, KeyChain
from intaglio.state.block_pool import BlockState, PoolGroup
from intaglio.state.block_pools import BlockPools
from intaglio.state.prefix_cache import PrefixCache
from intaglio.telemetry import Counters

IDENTITY = CacheIdentity("m", "r", "bf16", "auto", "bf16", "invariant/native", "tensor=1", 2)
Prefix = tuple[str, tuple[int, ...]]  # a tenant, and all tokens up to a block's end


class Request:
    """A request that holds blocks: the real thing's tables, and the model's idea of each block."""

    def __init__(self, tenant: str, tokens: tuple[int, ...]) -> None:
        self.tenant, self.tokens = tenant, tokens
        self.chain = KeyChain(IDENTITY.root(tenant), 2)
        self.tables: list[list[int]] = [[], []]
        self.numbers: list[list[int]] = [[], []]
        self.owned: list[Prefix | None] = []  # per block: the prefix it is findable under, None if it is not
        self.done = 0

    def prefix(self, index: int) -> Prefix:
        return self.tenant, self.tokens[: 2 * index + 2]


class CacheMachine(RuleBasedStateMachine):
    """The model: which prefixes are resident and how often used, and the idle ones in order of age."""

    @initialize(
        blocks=st.integers(1, 12), quota=st.one_of(st.none(), st.integers(0, 4)), private=st.booleans()
    )
    def start(self, blocks: int, quota: int | None, private: bool) -> None:
        self.pools = BlockPools([PoolGroup("a", blocks, 2, 8), PoolGroup("b", blocks, 2, 24)])
        self.counters, self.quota, self.private = Counters(), quota, private
        self.cache = PrefixCache(self.pools, self.counters, tenant_quota=quota, private=private)
        self.users: dict[Prefix, int] = {}
        self.idle: list[Prefix] = []
        self.requests: list[Request] = []
        self.hits = self.evicted = 0

    def free(self) -> int:
        own = sum(prefix is None for request in self.requests for prefix in request.owned)
        return self.pools.total - own - len(self.users)

    def evict(self, prefix: Prefix) -> None:
        self.idle.remove(prefix)
        del self.users[prefix]
        self.evicted += 1

    def make_room(self, count: int, tenant: str) -> None:
        while self.free() < count and self.idle:
            mine = [prefix for prefix in self.idle if prefix[0] == tenant] if self.private else []
            self.evict((mine or self.idle)[0])

    @rule(tenant=st.sampled_from(["", "a"]), tokens=st.lists(st.integers(1, 2), min_size=1, max_size=9))
    def begin(self, tenant: str, tokens: list[int]) -> None:
        request = Request(tenant, tuple(tokens))
        limit = (len(tokens) - 1) // 2
        request.chain.extend(tokens, limit)
        found = self.cache.match(request.chain, limit)
        expected = 0
        while expected < limit and request.prefix(expected) in self.users:
            expected += 1
        assert len(found) == expected
        need = -(-len(tokens) // 2) - expected
        spare = self.free() + len(self.idle) - self.cache.idle(found)
        if need > spare:
            return
        tables, numbers = self.cache.take(request.chain, found)
        for index in range(expected):
            prefix = request.prefix(index)
            self.users[prefix] += 1
            if prefix in self.idle:
                self.idle.remove(prefix)
            request.owned.append(prefix)
        self.hits += expected
        self.make_room(need, tenant)
        fresh = self.pools.allocate(need, tenant=tenant)
        new = self.pools.generations(fresh)
        for group in range(2):
            request.tables[group] = [*(tables[group] if tables else ()), *fresh[group]]
            request.numbers[group] = [*(numbers[group] if numbers else ()), *new[group]]
        request.owned += [None] * need
        request.done = expected
        self.requests.append(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        full = data.draw(st.integers(request.done, len(request.tokens) // 2))
        request.chain.extend(request.tokens, full)
        self.cache.commit(request.chain, request.tenant, request.tables, request.numbers, full)
        while request.done < full:
            prefix = request.prefix(request.done)
            if prefix not in self.users:
                held = [p for p in self.users if p[0] == request.tenant]
                if self.quota is not None and len(held) >= self.quota:
                    mine = [p for p in self.idle if p[0] == request.tenant]
                    if not mine:
                        return
                    self.evict(mine[0])
                self.users[prefix] = 1
                request.owned[request.done] = prefix
            request.done += 1

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), step=st.one_of(st.none(), st.just(7)))
    def end(self, data: st.DataObject, step: int | None) -> None:
        request = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        self.pools.release(request.tables, hold_step=step)
        self.cache.leave(request.chain)
        if step is not None:
            waiting = sum(self.users.get(prefix, 1) == 1 for prefix in request.owned)
            assert self.pools.pools[1].count(BlockState.QUARANTINED) == waiting
            self.pools.end_step(step)
        for prefix in reversed(request.owned):
            if prefix is None:
                continue
            self.users[prefix] -= 1
            if not self.users[prefix]:
                self.idle.append(prefix)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "pools"):
            return
        assert len(self.cache) == len(self.users)
        assert (self.pools.free, self.pools.cached) == (self.free(), len(self.idle))
        assert self.pools.available == self.free() + len(self.idle)
        assert self.counters["prefix_evicted_blocks"] == self.evicted
        assert self.counters["prefix_hit_blocks"] == self.hits
        assert self.counters["prefix_key_collisions"] == self.counters["prefix_stale_blocks"] == 0
        self.pools.check_integrity([request.tables for request in self.requests])

    def teardown(self) -> None:
        while hasattr(self, "pools") and self.requests:
            request = self.requests.pop()
            self.pools.release(request.tables)
            self.cache.leave(request.chain)
        if hasattr(self, "pools"):
            self.cache.clear()
            assert (self.pools.free, self.cache._nodes, self.cache._idle_of) == (self.pools.total, {}, {})


CacheMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, derandomize=True, deadline=None, database=None
)
TestCache = CacheMachine.TestCase


def one_pool(blocks: int = 8) -> tuple[BlockPools, PrefixCache, Counters]:
    pools, counters = BlockPools([PoolGroup("kv", blocks, 2, 8)]), Counters()
    return pools, PrefixCache(pools, counters), counters


def store(pools: BlockPools, cache: PrefixCache, tokens: list[int]) -> tuple[int, ...]:
    """Compute, commit and release a request of full blocks; the blocks stay cached."""
    chain = KeyChain(IDENTITY.root(""), 2)
    chain.extend(tokens, len(tokens) // 2)
    tables = pools.allocate(len(tokens) // 2)
    cache.commit(chain, "", tables, pools.generations(tables), len(tokens) // 2)
    pools.release(tables)
    cache.leave(chain)
    return tables[0]


def lookup(cache: PrefixCache, tokens: list[int]) -> int:
    chain = KeyChain(IDENTITY.root(""), 2)
    chain.extend(tokens, len(tokens) // 2)
    return len(cache.match(chain, len(tokens) // 2))


def test_a_block_handed_out_behind_the_caches_back_is_a_miss_and_counted() -> None:
    pools, cache, counters = one_pool()
    blocks = store(pools, cache, [1, 2, 3, 4])
    assert lookup(cache, [1, 2, 3, 4]) == 2
    pools.pools[0]._generation[blocks[1]] += 1
    assert lookup(cache, [1, 2, 3, 4]) == 1
    assert counters["prefix_stale_blocks"] == 1
    assert lookup(cache, [1, 2, 3, 4]) == 1
    assert counters["prefix_stale_blocks"] == 1  # it was forgotten, not found stale again
    assert (pools.free, pools.cached, len(cache)) == (7, 1, 1)
    pools.check_integrity([])


def test_a_lost_root_whose_descendant_makes_room_for_it_is_findable() -> None:
    """The quota evicts the one block that the lost root leads to, just as the root is computed again."""
    pools, counters = BlockPools([PoolGroup("kv", 8, 2, 8)]), Counters()
    cache = PrefixCache(pools, counters, tenant_quota=1)
    first, second = (KeyChain(IDENTITY.root(""), 2) for _ in range(2))
    held = []
    for chain, tokens in ((first, [1, 2]), (second, [1, 2, 3, 4])):
        chain.extend(tokens, len(tokens) // 2)
        held.append(pools.allocate(len(tokens) // 2))
        cache.commit(chain, "", held[-1], pools.generations(held[-1]), 1)
    pools.release(held[0])
    cache.leave(first)
    cache.clear()  # the root is lost, and the second request still stands on it
    cache.commit(second, "", held[1], pools.generations(held[1]), 2)
    pools.release(held[1])
    cache.leave(second)
    assert (len(cache), lookup(cache, [1, 2])) == (1, 0)
    store(pools, cache, [1, 2])
    assert counters["prefix_evicted_blocks"] == 2
    assert (len(cache), lookup(cache, [1, 2])) == (1, 1)
    store(pools, cache, [5, 6])  # takes its place
    assert (len(cache), lookup(cache, [1, 2]), lookup(cache, [5, 6])) == (1, 0, 1)
    cache.clear()
    assert (pools.free, cache._nodes) == (8, {})


def test_a_lost_root_computed_again_makes_its_descendants_findable_again() -> None:
    """A request that computed a block which others held meanwhile may keep the descendants of a lost one."""
    pools, cache, counters = one_pool()
    first, second = (KeyChain(IDENTITY.root(""), 2) for _ in range(2))
    held = []
    for chain, tokens in ((first, [1, 2]), (second, [1, 2, 3, 4])):
        chain.extend(tokens, len(tokens) // 2)
        held.append(pools.allocate(len(tokens) // 2))
        cache.commit(chain, "", held[-1], pools.generations(held[-1]), len(tokens) // 2)
    assert len(cache) == 2  # the second's own copy of the first block is its own alone
    pools.release(held[0])
    cache.leave(first)
    cache.clear()  # nobody uses the first's block
    assert lookup(cache, [1, 2, 3, 4]) == 0
    pools.release(held[1])
    cache.leave(second)
    store(pools, cache, [1, 2])
    assert lookup(cache, [1, 2, 3, 4]) == 2
    assert counters["prefix_key_collisions"] == 0


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(CacheIdentity)])
def test_every_part_of_the_identity_changes_every_key(name: str) -> None:
    value = getattr(IDENTITY, name)
    other = dataclasses.replace(IDENTITY, **{name: value + 1 if isinstance(value, int) else value + "x"})
    chains = [KeyChain(identity.root(""), 2) for identity in (IDENTITY, other)]
    for chain in chains:
        chain.extend([1, 2, 3, 4], 2)
    assert not set(chains[0].keys) & set(chains[1].keys)


def test_no_two_identities_have_the_same_bytes() -> None:
    """Text cannot move from one field to the next: each stands with its name and length."""
    shifted = dataclasses.replace(IDENTITY, model="", rope="mr")
    roots = {IDENTITY.root(""), IDENTITY.root("m"), shifted.root(""), shifted.root("tenant:0:")}
    assert len(roots) == 4
    assert dataclasses.replace(IDENTITY, parallel="x\0tenant:1:a").root("") != IDENTITY.root("a")


def test_keys_are_the_same_in_every_process() -> None:
    code = (
        "from intaglio.state.block_key import CacheIdentity, KeyChain\n"
        f"chain = KeyChain({IDENTITY!r}.root('t'), 2)\n"
        "chain.extend([5, 6, 7, 8, 9], 2)\n"
        "print([key.hex() for key in chain.keys])\n"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
    assert "['" in runs.pop()


def test_a_chain_grows_by_any_steps_to_the_same_keys() -> None:
    tokens = list(range(100))
    whole, parts = KeyChain(b"root", 4), KeyChain(b"root", 4)
    whole.extend(tokens, 25)
    for blocks in (1, 1, 7, 3, 24, 25):
        parts.extend(tokens[: max(4 * blocks, 4 * len(parts.keys))], blocks)
    assert whole.keys == parts.keys
    assert len(set(whole.keys)) == 25


def test_each_token_is_hashed_once() -> None:
    """The cost of a look-up, counted in bytes and not by the clock."""
    seen: list[int] = []

    def counting(data: bytes) -> bytes:
        seen.append(len(data))
        return data[-8:]

    chain, tokens = KeyChain(b"root", 16, counting), list(range(1000))
    for blocks in (10, 30, 30, 62):
        chain.extend(tokens, blocks)
    assert len(seen) == 62 + 4 - 3  # one a block, and the root once
    assert sum(seen) < 62 * 16 * 4 * 3
