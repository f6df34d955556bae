"""The scheduler against the plainest model there is: every request alone, one token after the other.

Whatever the pool's size, the chunking, the budget, preemptions and aborts, a request's tokens are those of the
unconstrained run; an aborted one's are a prefix of it.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from intaglio.config import from_flat
from intaglio.errors import CapacityError, PromptTooLongError
from intaglio.intake.request import SamplingParams, TokenEvent

MAX_MODEL_LEN = 48
SHARED = ([97] * 12, [97] * 4 + [98] * 8, [99, 100] * 3)


class EngineMachine(RuleBasedStateMachine):
    """Random requests on an engine with little memory."""

    fake: ModuleType
    use_cache: bool
    prefix: bool
    seen: Counter[str]  # counters of all examples together

    @initialize(
        blocks=st.integers(2, 9),
        block_tokens=st.sampled_from([1, 3, 4]),
        budget=st.integers(1, 12),
        running=st.integers(1, 5),
        chunk=st.one_of(st.none(), st.integers(1, 7)),
        quota=st.one_of(st.none(), st.integers(0, 4)),
        hide=st.booleans(),
    )
    def start(
        self,
        blocks: int,
        block_tokens: int,
        budget: int,
        running: int,
        chunk: int | None,
        quota: int | None,
        hide: bool,
    ) -> None:
        self.config = from_flat(
            {
                "kv_cache.enabled": self.use_cache,
                "kv_cache.blocks": blocks,
                "kv_cache.block_tokens": block_tokens,
                "scheduler.token_budget": budget if self.use_cache else budget + 6,
                "scheduler.max_running": running,
                "scheduler.prefill_chunk": chunk,
                "scheduler.max_model_len": MAX_MODEL_LEN,
                "prefix_cache.enabled": self.prefix,
                "prefix_cache.tenant_quota_blocks": quota,
                "prefix_cache.hide_timing": hide and quota is not None,
            }
        )
        self.engine = self.fake.make_engine(self.config)
        self.capacity = blocks * block_tokens if self.use_cache else budget + 6
        self.requests: dict[str, tuple[list[int], SamplingParams]] = {}
        self.events: dict[str, list[TokenEvent]] = {}
        self.aborted: set[str] = set()
        self.refused = 0
        self.tenants: dict[str, str] = {}
        self.owner: dict[tuple[int, int, int], str] = {}

    @rule(
        prompt=st.one_of(
            st.lists(st.integers(97, 104), min_size=1, max_size=14),
            st.tuples(st.sampled_from(SHARED), st.lists(st.integers(97, 98), max_size=3)).map(
                lambda parts: [*parts[0], *parts[1]]
            ),
        ),
        tenant=st.sampled_from(["", "a", "b"]),
        max_tokens=st.integers(1, 14),
        temperature=st.sampled_from([0.0, 1.0]),
        seed=st.integers(0, 3),
        stop=st.sampled_from([(), ("ab",), ("ca", "b"), ("é",)]),
        ignore_eos=st.booleans(),
    )
    def add(self, prompt: list[int], tenant: str, **values: Any) -> None:
        self.add_one(prompt, tenant, SamplingParams(**values))

    def add_one(self, prompt: list[int], tenant: str, params: SamplingParams) -> None:
        if len(prompt) > self.capacity:
            with pytest.raises(CapacityError):
                self.engine.add(prompt, params, tenant=tenant)
            self.refused += 1
            return
        request_id = self.engine.add(prompt, params, tenant=tenant)
        self.tenants[request_id] = tenant
        self.requests[request_id] = (prompt, params)
        self.events[request_id] = []

    @rule(count=st.integers(2, 5), size=st.integers(1, 9), more=st.integers(6, 20), data=st.data())
    def add_a_crowd(self, count: int, size: int, more: int, data: st.DataObject) -> None:
        """Several that begin alike and grow: together they want more blocks than there are."""
        tenant = data.draw(st.sampled_from(["", "a"]))
        for index in range(count):
            prompt = [97] * size + [98 + index]
            self.add_one(prompt, tenant, SamplingParams(max_tokens=more, ignore_eos=True))

    @rule(prompt=st.lists(st.integers(97, 104), min_size=40, max_size=60))
    def add_one_that_is_too_long(self, prompt: list[int]) -> None:
        with pytest.raises(PromptTooLongError):
            self.engine.add(prompt, SamplingParams(max_tokens=20))
        self.refused += 1

    @rule(times=st.integers(1, 9))
    def step(self, times: int) -> None:
        for _ in range(times):
            had_work = self.engine.has_work
            steps = self.engine.counters()["steps"]
            events = self.engine.step()
            if had_work:
                assert events or self.engine.counters()["steps"] == steps + 1
            self.take(events)

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.live()))
        assert self.engine.abort(request_id)
        assert not self.engine.abort(request_id)
        self.aborted.add(request_id)

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def abort_while_a_step_is_in_flight(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.live()))
        done: list[bool] = []
        self.engine.fake.during = lambda plan: done.append(self.engine.abort(request_id))
        self.take(self.engine.step())
        self.engine.fake.during = None
        if done and done[0]:
            self.aborted.add(request_id)

    @precondition(lambda self: self.live() and self.engine._scheduler._running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.engine._scheduler._running)))
        assert self.engine._scheduler.preempt(request_id)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.check_integrity()
        gauges, counters = self.engine.gauges(), self.engine.counters()
        assert gauges["running"] + gauges["waiting"] == len(self.engine._scheduler.live_ids())
        assert gauges["running"] <= self.config.scheduler.max_running
        held = gauges["kv_blocks_used"] + gauges["kv_blocks_cached"]
        assert counters["blocks_allocated"] - counters["blocks_freed"] == held * 2
        assert counters["requests_admitted"] == len(self.requests)
        assert counters["requests_rejected"] == self.refused
        assert counters["tokens_computed"] == counters["prefill_tokens"] + counters["decode_tokens"]
        if self.use_cache:
            assert gauges["running"] <= self.config.scheduler.token_budget
        self.check_tenants()
        for plan in self.engine.fake.plans[-4:]:
            assert sum(len(row.tokens) for row in plan.rows) <= self.config.scheduler.token_budget

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        # Each token of each request needs its own row at worst, and each preemption recomputes at most a pool.
        most = sum(len(p) + s.max_tokens for p, s in self.requests.values()) * (self.capacity + 2) + 10
        for _ in range(most):
            if not self.engine.has_work:
                break
            self.take(self.engine.step())
        assert not self.engine.has_work, "livelock"
        for request_id, (prompt, params) in self.requests.items():
            self.check(request_id, prompt, params)
        gauges = self.engine.gauges()
        assert (gauges["running"], gauges["waiting"], gauges["kv_blocks_used"]) == (0, 0, 0)
        self.seen.update(self.engine.counters())
        reuse = self.engine._scheduler.reuse
        if reuse is not None:
            assert not reuse._promised
            assert gauges["kv_blocks_cached"] == len(reuse.cache)
            reuse.cache.clear()
            assert (len(reuse.cache), reuse.cache._nodes, self.engine.gauges()["kv_blocks_cached"]) == (
                0,
                {},
                0,
            )
        self.engine.check_integrity()

    def check_tenants(self) -> None:
        """A block's contents belong to the tenant of the request it was handed out to, for ever."""
        pools, reuse = self.engine._pools, self.engine._scheduler.reuse
        for request_id in self.live():
            sequence, tenant = self.engine._scheduler.get(request_id), self.tenants[request_id]
            for group, table in enumerate(sequence.block_tables):
                for block, generation in zip(table, sequence.generations[group], strict=True):
                    assert pools.pools[group].generation(block) == generation
                    assert self.owner.setdefault((group, block, generation), tenant) == tenant
        quota = self.config.prefix_cache.tenant_quota_blocks
        if reuse is not None and quota is not None:
            assert all(reuse.cache.held(tenant) <= quota for tenant in ("", "a", "b"))

    def check(self, request_id: str, prompt: list[int], params: SamplingParams) -> None:
        events = self.events[request_id]
        output = self.engine.output(request_id)
        terminal = [event for event in events if event.finish_reason is not None]
        assert len(terminal) == 1
        assert terminal[0] is events[-1]
        tokens = [event.token_id for event in events if event.token_id is not None]
        wanted, reason = self.fake.reference(prompt, params, seed=params.seed, max_len=self.capacity)
        assert output.token_ids == tokens
        assert output.text == "".join(event.text for event in events)
        if request_id in self.aborted:
            assert tokens == wanted[: len(tokens)]
            assert output.finish_reason == "abort"
        else:
            assert tokens == wanted
            assert output.finish_reason == reason

    def live(self) -> list[str]:
        return list(self.engine._scheduler.live_ids()) if hasattr(self, "engine") else []

    def take(self, events: list[TokenEvent]) -> None:
        for event in events:
            self.events[event.request_id].append(event)


@pytest.mark.parametrize("mode", ["paged", "prefix", "uncached"])
def test_outputs_never_depend_on_scheduling(fake: ModuleType, mode: str) -> None:
    seen: Counter[str] = Counter()
    settings_of = {"fake": fake, "use_cache": mode != "uncached", "prefix": mode == "prefix", "seen": seen}
    machine = type("Machine", (EngineMachine,), settings_of)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=90, stateful_step_count=30, derandomize=True, deadline=None, database=None
        ),
    )
    # Whatever the examples were, they came past what they are to prove.
    wanted = {"requests_finished", "requests_aborted", "requests_rejected", "tokens_discarded"}
    if mode != "uncached":
        wanted |= {"preemptions", "tokens_recomputed"}
    if mode == "prefix":
        wanted |= {
            f"prefix_{name}" for name in ("hit_blocks", "evicted_blocks", "deferrals", "quota_refusals")
        }
        wanted.add("prefix_cross_tenant_evictions")
    assert not {name for name in wanted if not seen[name]}, seen
    assert (seen["prefix_hit_blocks"] > 0) == (mode == "prefix")
