"""Requests share prefixes through the engine: what is hit, what is computed, who waits, and what never happens."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest

from intaglio.errors import ConfigError, QueueFullError, RequestError
from intaglio.intake.request import RequestOutput, SamplingParams

SHORT = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.fixture
def cached(make: Any) -> Any:
    """make(...) with the prefix cache on; blocks of 4 tokens, 64 blocks."""

    def build(**values: Any) -> Any:
        return make(**{"prefix_cache__enabled": True, **values})

    return build


def text(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(97, 105), k=count)


def run(engine: Any, *, most: int = 2000) -> dict[str, RequestOutput]:
    ended = []
    for _ in range(most):
        if not engine.has_work:
            break
        ended += [event.request_id for event in engine.step() if event.finish_reason]
        engine.check_integrity()
    assert not engine.has_work
    assert len(ended) == len(set(ended))
    return {request_id: engine.output(request_id) for request_id in ended}


def work(engine: Any, *names: str) -> list[int]:
    counters = engine.counters()
    return [counters[name] for name in names]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 16, 17])
def test_a_prompt_sent_twice_leaves_at_least_one_token_to_compute(
    fake: ModuleType, cached: Any, length: int
) -> None:
    engine, prompt = cached(), text(length)
    (first,) = engine.generate([prompt], SHORT)
    (second,) = engine.generate([prompt], SHORT)
    hit = (length - 1) // 4 * 4
    assert (first.cached_tokens, second.cached_tokens) == (0, hit)
    assert (first.tokens_computed, second.tokens_computed) == (length + 3, length + 3 - hit)
    assert first.token_ids == second.token_ids == fake.reference(prompt, SHORT)[0]
    assert work(engine, "prefix_hit_tokens", "prefix_hit_blocks") == [hit, hit // 4]
    assert work(engine, "prefix_lookup_tokens") == [2 * length]
    assert engine.gauges()["kv_blocks_used"] == 0
    assert engine.gauges()["kv_blocks_cached"] == (length + 3) // 4


def test_switched_off_nothing_is_kept_or_hit(make: Any) -> None:
    engine, prompt = make(), text(17)
    for _ in range(2):
        (output,) = engine.generate([prompt], SHORT)
        assert (output.cached_tokens, output.tokens_computed) == (0, 20)
    assert work(engine, "prefix_lookup_tokens", "prefix_hit_tokens") == [0, 0]
    assert engine.gauges()["kv_blocks_cached"] == 0


def test_an_answer_is_part_of_the_next_turns_prefix(fake: ModuleType, cached: Any) -> None:
    engine, prompt = cached(), text(9)
    (answer,) = engine.generate([prompt], SamplingParams(max_tokens=12, ignore_eos=True))
    turn = [*prompt, *answer.token_ids, 97]
    (output,) = engine.generate([turn], SHORT)
    # 9 + 12 tokens, of which the last one was chosen but never computed: 20 tokens in 5 full blocks.
    assert output.cached_tokens == 20
    assert output.token_ids == fake.reference(turn, SHORT)[0]


@pytest.mark.parametrize("chunk", [None, 3, 16, 40])
@pytest.mark.parametrize("budget", [64, 2048])
def test_sixteen_requests_sent_together_compute_their_common_prefix_once(
    fake: ModuleType, cached: Any, chunk: int | None, budget: int
) -> None:
    engine = cached(kv_cache__blocks=256, scheduler__prefill_chunk=chunk, scheduler__token_budget=budget)
    prefix = text(128)
    prompts = [[*prefix, *text(5, seed=i + 1)] for i in range(16)]
    for i, prompt in enumerate(prompts):
        engine.add(prompt, SHORT, request_id=f"r{i:02d}")
    outputs = run(engine)
    for i, prompt in enumerate(prompts):
        assert outputs[f"r{i:02d}"].token_ids == fake.reference(prompt, SHORT)[0]
    assert sorted(output.cached_tokens for output in outputs.values()) == [0] + [128] * 15
    assert work(engine, "prefill_tokens") == [128 + 16 * 5]
    assert work(engine, "prefix_hit_blocks") == [15 * 32]
    # Where the leader takes the whole budget nobody else is looked at.
    assert (work(engine, "prefix_deferrals")[0] > 0) == (budget > 64 or chunk is not None)


def test_no_block_is_hit_before_the_step_that_computes_it_is_over(cached: Any) -> None:
    engine, prompt = cached(), text(12)
    for name in ("a", "b"):
        engine.add(prompt, SHORT, request_id=name)
    engine.step()
    assert [row.request_id for row in engine.fake.plans[0].rows] == ["a"]
    engine.step()
    starts = {row.request_id: (row.start, len(row.tokens)) for row in engine.fake.plans[1].rows}
    assert starts == {"a": (12, 1), "b": (8, 4)}


def test_a_small_common_part_is_no_reason_to_wait(cached: Any) -> None:
    engine = cached()
    for i in range(3):
        engine.add([*text(4), *text(40, seed=i + 1)], SHORT, request_id=f"r{i}")
    engine.step()
    assert len(engine.fake.plans[0].rows) == 3
    assert work(engine, "prefix_deferrals") == [0]


def test_others_pass_a_request_that_waits_for_a_prefix(cached: Any) -> None:
    engine = cached(scheduler__prefill_chunk=4)
    prefix = text(32)
    engine.add([*prefix, 97], SHORT, request_id="leader")
    engine.add([*prefix, 98], SHORT, request_id="waits")
    engine.add(text(6, seed=3), SHORT, request_id="other")
    engine.step()
    assert [row.request_id for row in engine.fake.plans[0].rows] == ["leader", "other"]
    outputs = run(engine)
    assert outputs["waits"].cached_tokens == 32


@pytest.mark.parametrize("how", ["abort", "preempt", "step fails", "row fails", "abort in flight"])
def test_who_waits_goes_on_when_the_other_does_not_deliver(fake: ModuleType, cached: Any, how: str) -> None:
    engine = cached(scheduler__prefill_chunk=8)
    prefix, steps = text(48), 2
    engine.add([*prefix, 97], SHORT, request_id="0-leader")
    engine.add([*prefix, 98], SHORT, request_id="1-waits")
    if how == "row fails":
        engine.fake.row_error.add("0-leader")
    if how == "step fails":
        engine.fake.fail.add(steps + 1)
    for _ in range(steps):
        engine.step()
    if how == "abort":
        engine.abort("0-leader")
    elif how == "preempt":
        assert engine._scheduler.preempt("0-leader")
    elif how == "abort in flight":
        engine.fake.during = lambda plan: engine.abort("0-leader")
        engine.step()
        engine.fake.during = None
    outputs = run(engine, most=60)
    prompt = [*prefix, 98]
    assert outputs["1-waits"].token_ids == fake.reference(prompt, SHORT)[0]
    assert outputs["1-waits"].finish_reason == "length"
    done = {"abort": 16, "step fails": 16, "row fails": 0, "abort in flight": 16}
    if how == "preempt":
        # It starts again first, on its own 16 tokens, and delivers after all.
        assert outputs["0-leader"].token_ids == fake.reference([*prefix, 97], SHORT)[0]
        assert work(engine, "tokens_recomputed", "prefill_tokens") == [0, 48 + 1 + 1]
        assert (outputs["0-leader"].cached_tokens, outputs["1-waits"].cached_tokens) == (0, 48)
    else:
        assert outputs["1-waits"].cached_tokens == done[how]
    assert engine._scheduler.reuse._promised == {}


def test_a_promise_that_nobody_keeps_is_waited_for_only_so_long(fake: ModuleType, cached: Any) -> None:
    """Whatever went wrong with the promise, a request starts after as many steps as it has tokens."""
    engine, prompt = cached(), text(20)
    engine.add(prompt, SHORT, request_id="a")
    reuse, sequence = engine._scheduler.reuse, engine._scheduler.get("a")
    assert reuse.find(sequence) == []
    reuse._promised.update(dict.fromkeys(sequence.chain.keys, object()))
    for _ in range(20):
        assert engine.step() == []
    assert work(engine, "steps", "prefix_deferrals") == [0, 20]
    assert run(engine, most=8)["a"].token_ids == fake.reference(prompt, SHORT)[0]


def test_a_preempted_request_finds_its_own_blocks(fake: ModuleType, cached: Any) -> None:
    engine, prompt = cached(), text(13)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    engine.add(prompt, params, request_id="a")
    for _ in range(6):
        engine.step()
    assert engine._scheduler.preempt("a")
    assert engine.gauges()["kv_blocks_cached"] == 4
    output = run(engine)["a"]
    assert output.token_ids == fake.reference(prompt, params)[0]
    # 13 + 5 tokens were computed, 16 of them in full blocks; the answer's own tokens are no prompt tokens hit.
    assert work(engine, "preemptions", "tokens_recomputed", "prefix_hit_tokens") == [1, 2, 16]
    assert output.cached_tokens == 0
    assert output.tokens_computed == 13 + 11 + 2


def test_a_prompt_is_hit_again_after_an_unrelated_one(cached: Any) -> None:
    """Looked up before anything is allocated, and given up by age: with room for both, both stay."""
    engine = cached(kv_cache__blocks=16)
    first, other = text(24), text(24, seed=5)
    engine.generate([first], SHORT)
    engine.generate([other], SHORT)
    (again,) = engine.generate([first], SHORT)
    assert again.cached_tokens == 20
    assert work(engine, "prefix_evicted_blocks") == [0]


def test_a_chain_loses_its_tail_before_its_root(cached: Any) -> None:
    engine = cached(kv_cache__blocks=12)
    first = text(32)
    engine.generate([first], SamplingParams(max_tokens=1))  # 8 blocks stay
    engine.generate([text(24, seed=5)], SamplingParams(max_tokens=1))  # needs 6 of 12: the oldest 2 go
    assert work(engine, "prefix_evicted_blocks") == [2]
    (again,) = engine.generate([first], SamplingParams(max_tokens=1))
    assert again.cached_tokens == 24  # the first 6 of its 8


def test_tenants_never_share(fake: ModuleType, cached: Any) -> None:
    engine, prompt = cached(), text(20)
    engine.generate([prompt], SHORT, tenant="a")
    (other,) = engine.generate([prompt], SHORT, tenant="b")
    (same,) = engine.generate([prompt], SHORT, tenant="a")
    (nobody,) = engine.generate([prompt], SHORT)
    assert [o.cached_tokens for o in (other, same, nobody)] == [0, 16, 0]
    for tenant in ("c", "d"):
        engine.add(prompt, SHORT, tenant=tenant)
    engine.step()
    assert len(engine.fake.plans[-1].rows) == 2  # not even waiting for each other
    assert len({tuple(o.token_ids) for o in run(engine).values()}) == 1


@pytest.mark.parametrize("tenant", [None, 3, "x" * 257, "\ud800"])
def test_a_tenant_that_is_none_is_refused(cached: Any, tenant: Any) -> None:
    engine = cached()
    with pytest.raises(RequestError) as caught:
        engine.add([97], SHORT, tenant=tenant)
    assert caught.value.field == "tenant"
    assert not engine.has_work


def test_a_key_that_always_collides_hits_nothing_wrong(fake: ModuleType, cached: Any) -> None:
    engine = cached()
    engine._scheduler.reuse._hasher = lambda data: b"same"
    prompts = [text(20), [98, *text(19)], [*text(4), *text(16, seed=4)]]
    for tenant in ("a", "b"):
        for prompt in prompts:
            (output,) = engine.generate([prompt], SHORT, tenant=tenant)
            assert output.token_ids == fake.reference(prompt, SHORT)[0]
    counters = engine.counters()
    assert counters["prefix_key_collisions"] > 0
    # Only the first block of the first prompt ever stood under the one key; only its tenant can hit it.
    (a,) = engine.generate([prompts[0]], SHORT, tenant="a")
    (b,) = engine.generate([prompts[0]], SHORT, tenant="b")
    assert (a.cached_tokens, b.cached_tokens) == (4, 0)


def test_a_tenants_quota_binds_only_itself(cached: Any) -> None:
    engine = cached(prefix_cache__tenant_quota_blocks=3)
    prompt = text(32)
    for tenant in ("a", "b"):
        engine.generate([prompt], SHORT, tenant=tenant)
        (again,) = engine.generate([prompt], SHORT, tenant=tenant)
        assert again.cached_tokens == 12
    cache = engine._scheduler.reuse.cache
    assert (cache.held("a"), cache.held("b")) == (3, 3)
    assert work(engine, "prefix_quota_refusals")[0] > 0
    (newer,) = engine.generate([text(9, seed=2)], SHORT, tenant="a")  # its own oldest blocks make way
    (again,) = engine.generate([text(9, seed=2)], SHORT, tenant="a")
    assert (newer.cached_tokens, again.cached_tokens, cache.held("a"), cache.held("b")) == (0, 8, 3, 3)


@pytest.mark.parametrize("hide", [False, True])
def test_hidden_timing_keeps_anothers_traffic_out_of_a_tenants_hits(cached: Any, hide: bool) -> None:
    engine = cached(kv_cache__blocks=20, prefix_cache__tenant_quota_blocks=8, prefix_cache__hide_timing=hide)
    engine.generate([text(28)], SamplingParams(max_tokens=1), tenant="victim")
    for seed in range(1, 9):
        engine.generate([text(28, seed)], SamplingParams(max_tokens=1), tenant="prober")
    (again,) = engine.generate([text(28)], SamplingParams(max_tokens=1), tenant="victim")
    assert (again.cached_tokens == 24) == hide
    assert work(engine, "prefix_cross_tenant_evictions") == [0]


def test_hidden_timing_that_cannot_hold_is_counted(cached: Any) -> None:
    engine = cached(kv_cache__blocks=8, prefix_cache__tenant_quota_blocks=8, prefix_cache__hide_timing=True)
    engine.generate([text(28)], SamplingParams(max_tokens=1), tenant="victim")
    engine.generate([text(28, 1)], SamplingParams(max_tokens=1), tenant="other")
    assert work(engine, "prefix_cross_tenant_evictions") == [6]


def test_switches_that_contradict_each_other_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="tenant_quota_blocks"):
        make(prefix_cache__enabled=True, prefix_cache__hide_timing=True)
    with pytest.raises(ConfigError, match=r"kv_cache\.enabled"):
        make(prefix_cache__enabled=True, kv_cache__enabled=False)


def test_a_full_queue_refuses_and_keeps_what_it_has(make: Any) -> None:
    engine = make(scheduler__max_running=1, scheduler__max_waiting=2)
    names = [engine.add([97], SHORT) for _ in range(2)]
    with pytest.raises(QueueFullError) as caught:
        engine.add([97], SHORT)
    assert (caught.value.code, caught.value.field) == ("queue_full", "scheduler.max_waiting")
    engine.step()  # one of them has a slot now
    names.append(engine.add([97], SHORT))
    assert sorted(run(engine)) == sorted(names)
    assert work(engine, "requests_rejected", "requests_finished") == [1, 3]


def test_a_failed_step_leaves_nothing_to_hit(fake: ModuleType, cached: Any) -> None:
    engine, prompt = cached(), text(16)
    engine.fake.fail.add(1)
    (failed,) = engine.generate([prompt], SHORT)
    assert failed.error is not None
    assert engine.gauges()["kv_blocks_cached"] == 0
    (output,) = engine.generate([prompt], SHORT)
    assert (output.cached_tokens, output.token_ids) == (0, fake.reference(prompt, SHORT)[0])
