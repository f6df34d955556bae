"""The scheduler's rules one by one: order, budget, chunks, preemption, fairness, the end of the pool."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from intaglio.errors import CapacityError
from intaglio.intake.request import RequestOutput, SamplingParams
from intaglio.intake.step_plan import StepPlan

LONG = SamplingParams(max_tokens=40, ignore_eos=True)


def run(engine: Any, *, most: int = 2000) -> dict[str, RequestOutput]:
    """Step to the end and return the outputs by id."""
    ended = []
    for _ in range(most):
        if not engine.has_work:
            break
        ended += [event.request_id for event in engine.step() if event.finish_reason]
        engine.check_integrity()
    assert not engine.has_work
    assert len(ended) == len(set(ended))
    return {request_id: engine.output(request_id) for request_id in ended}


def rows(plan: StepPlan) -> dict[str, tuple[str, int, int]]:
    return {row.request_id: (row.phase, row.start, len(row.tokens)) for row in plan.rows}


def kinds(engine: Any) -> list[str]:
    return [event["kind"] for event in engine.drain_events()]


def test_one_step_mixes_decodes_and_prefill_chunks(make: Any) -> None:
    engine = make(scheduler__token_budget=8)
    engine.add([97] * 3, LONG, request_id="a")
    engine.step()
    engine.add([98] * 20, LONG, request_id="b")
    for _ in range(4):
        engine.step()
    assert [rows(plan) for plan in engine.fake.plans] == [
        {"a": ("prefill", 0, 3)},
        {"a": ("decode", 3, 1), "b": ("prefill", 0, 7)},
        {"a": ("decode", 4, 1), "b": ("prefill", 7, 7)},
        {"a": ("decode", 5, 1), "b": ("prefill", 14, 6)},
        {"a": ("decode", 6, 1), "b": ("decode", 20, 1)},
    ]
    counters = engine.counters()
    assert (counters["prefill_tokens"], counters["decode_tokens"]) == (23, 5)


@pytest.mark.parametrize("chunk", [1, 2, 5, 16, 33])
def test_chunks_have_the_size_asked_for_and_change_no_output(fake: ModuleType, make: Any, chunk: int) -> None:
    engine = make(scheduler__prefill_chunk=chunk)
    prompt = [97 + i % 8 for i in range(41)]
    engine.add(prompt, LONG, request_id="a")
    output = run(engine)["a"]
    assert output.token_ids == fake.reference(prompt, LONG)[0]
    sizes = [len(plan.rows[0].tokens) for plan in engine.fake.plans if plan.rows[0].phase == "prefill"]
    assert sizes == [chunk] * (41 // chunk) + ([41 % chunk] if 41 % chunk else [])


def test_generating_100_tokens_computes_100_with_and_5050_without_a_cache(make: Any) -> None:
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    for enabled, tokens in ((True, 100), (False, 5050)):
        engine = make(kv_cache__enabled=enabled)
        (output,) = engine.generate([[97]], params)
        assert engine.counters()["tokens_computed"] == output.tokens_computed == tokens
        assert len(output.token_ids) == 100


def test_requests_are_admitted_in_order_of_arrival(make: Any) -> None:
    engine = make(scheduler__max_running=2)
    for name in ("c", "a", "b"):
        engine.add([97, 98], SamplingParams(max_tokens=3, ignore_eos=True), request_id=name)
    engine.step()
    assert engine.gauges() | {"kv_blocks_total": 0, "kv_bytes_used": 0} == {
        "running": 2,
        "waiting": 1,
        "kv_blocks_used": 2,
        "kv_blocks_cached": 0,
        "kv_blocks_total": 0,
        "kv_bytes_used": 0,
        "kv_blocks_unaccounted": 0,
    }
    first = [sorted(rows(plan)) for plan in engine.fake.plans]
    run(engine)
    assert first == [["a", "c"]]
    assert sorted(rows(engine.fake.plans[-1])) == ["b"]


def test_a_blocked_head_is_not_overtaken(make: Any) -> None:
    """First come, first served: a small request behind a big one waits, so the big one cannot starve."""
    engine = make(kv_cache__blocks=6)
    engine.add([97] * 12, SamplingParams(max_tokens=8, ignore_eos=True), request_id="1-running")
    engine.step()
    engine.add([98] * 16, SamplingParams(max_tokens=2, ignore_eos=True), request_id="2-big")
    engine.add([99], SamplingParams(max_tokens=2, ignore_eos=True), request_id="3-small")
    run(engine)
    order = [name for plan in engine.fake.plans for name in rows(plan)]
    assert order.index("2-big") < order.index("3-small")


def test_prompt_that_can_never_fit_the_pool_is_refused_and_others_go_on(fake: ModuleType, make: Any) -> None:
    engine = make(kv_cache__blocks=4)
    engine.add([97] * 3, SamplingParams(max_tokens=5, ignore_eos=True), request_id="ok")
    with pytest.raises(CapacityError, match="never fit: the KV pool holds 16") as caught:
        engine.add([98] * 17, SamplingParams(max_tokens=1))
    assert caught.value.field == "prompt"
    assert (
        run(engine)["ok"].token_ids
        == fake.reference([97] * 3, SamplingParams(max_tokens=5, ignore_eos=True))[0]
    )
    assert engine.counters()["requests_rejected"] == 1
    assert kinds(engine) == ["rejected"]


def test_a_prompt_that_fills_the_pool_exactly_yields_its_one_token(make: Any) -> None:
    engine = make(kv_cache__blocks=4)
    (output,) = engine.generate([[97] * 16], SamplingParams(max_tokens=9, ignore_eos=True))
    assert (output.finish_reason, len(output.token_ids)) == ("length", 1)
    assert kinds(engine) == ["kv_exhausted"]


@pytest.mark.parametrize("companions", [0, 2])
def test_a_request_that_outgrows_the_pool_ends_honestly(fake: ModuleType, make: Any, companions: int) -> None:
    engine = make(kv_cache__blocks=4)
    engine.add([97] * 3, LONG, request_id="0-outgrows")
    short = SamplingParams(max_tokens=6, ignore_eos=True)
    for index in range(companions):
        engine.add([98 + index] * 3, short, request_id=f"{index + 1}-short")
    outputs = run(engine)
    wanted, _ = fake.reference([97] * 3, LONG)
    assert outputs["0-outgrows"].token_ids == wanted[:14]  # 3 + 14 tokens: the 17th has no place
    assert outputs["0-outgrows"].finish_reason == "length"
    assert kinds(engine).count("kv_exhausted") == 1
    for index in range(companions):
        assert outputs[f"{index + 1}-short"].token_ids == fake.reference([98 + index] * 3, short)[0]
    assert engine.gauges()["kv_blocks_used"] == 0


def test_without_a_cache_the_budget_is_what_a_request_outgrows(make: Any) -> None:
    engine = make(kv_cache__enabled=False, scheduler__token_budget=10)
    with pytest.raises(CapacityError, match=r"scheduler\.token_budget"):
        engine.add([97] * 11, SamplingParams(max_tokens=1))
    (output,) = engine.generate([[97] * 6], LONG)
    assert (output.finish_reason, len(output.token_ids)) == ("length", 5)
    assert kinds(engine) == ["rejected", "recompute_budget_exhausted"]


@pytest.mark.parametrize("longer", [0, 1, 2, 3])
def test_two_requests_of_60_percent_each_end_without_livelock(
    fake: ModuleType, make: Any, longer: int
) -> None:
    """Either may be the first to need a block when none is left: they stand at different places in their blocks."""
    engine = make(kv_cache__blocks=10)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    prompts = {"a": [97] * 4, "b": [98] * (4 + longer)}
    for name, prompt in prompts.items():
        engine.add(prompt, params, request_id=name)
    outputs = run(engine, most=60)
    for name, prompt in prompts.items():
        assert outputs[name].token_ids == fake.reference(prompt, params)[0]
    preempted = [e["request_id"] for e in engine.drain_events() if e["kind"] == "preemption"]
    assert set(preempted) == {"b"}  # the earlier arrival has the older right
    assert 1 <= len(preempted) <= 2
    counters = engine.counters()
    assert counters["preemptions"] == len(preempted)
    assert counters["tokens_computed"] == 2 * 23 + longer + counters["tokens_recomputed"]
    assert counters["tokens_recomputed"] > 0


def test_admission_leaves_room_for_those_who_run(make: Any) -> None:
    """Otherwise the newcomer would be preempted as soon as an earlier request needs its next block."""
    engine = make(kv_cache__blocks=4)
    engine.add([97] * 7, SamplingParams(max_tokens=4, ignore_eos=True), request_id="a")
    engine.add([98] * 8, SamplingParams(max_tokens=2, ignore_eos=True), request_id="b")
    run(engine)
    assert engine.counters()["preemptions"] == 0
    assert [sorted(rows(plan)) for plan in engine.fake.plans] == [["a"]] * 4 + [["b"]] * 2


def test_many_requests_in_a_small_pool_take_bounded_steps(fake: ModuleType, make: Any) -> None:
    engine = make(kv_cache__blocks=12, scheduler__max_running=8, scheduler__token_budget=16)
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    prompts = {f"r{i}": [97 + i % 8] * (3 + i) for i in range(12)}
    for name, prompt in prompts.items():
        engine.add(prompt, params, request_id=name)
    outputs = run(engine, most=300)
    assert {name: o.token_ids for name, o in outputs.items()} == {
        name: fake.reference(prompt, params)[0] for name, prompt in prompts.items()
    }
    counts: dict[str, int] = {}
    for event in engine.drain_events():
        counts[event["request_id"]] = counts.get(event["request_id"], 0) + 1
    assert counts  # the pool was too small for all of them at once
    assert max(counts.values()) <= 6


@pytest.mark.parametrize("enabled", [True, False])
def test_every_running_request_has_its_turn(fake: ModuleType, make: Any, enabled: bool) -> None:
    """With a cache in every step; without, where not all prefixes fit a step, before any other has two."""
    budget = 3 if enabled else 30
    engine = make(scheduler__token_budget=budget, scheduler__max_running=8, kv_cache__enabled=enabled)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    names = [f"r{index}" for index in range(8)]
    for index, name in enumerate(names):
        engine.add([97 + index, 98], params, request_id=name)
    waits, longest = dict.fromkeys(names, 0), 0
    while engine.has_work:
        running = set(engine._scheduler._running)
        engine.step()
        served = set(rows(engine.fake.plans[-1]))
        for name in running:
            waits[name] = 0 if name in served else waits[name] + 1
            longest = max(longest, waits[name])
    assert longest == 0 if enabled else 0 < longest <= 8
    for index, name in enumerate(names):
        assert engine.output(name).token_ids == fake.reference([97 + index, 98], params)[0]


@pytest.mark.parametrize("budget", [1, 2])
def test_budget_of_one_and_a_pool_for_one_and_a_half(fake: ModuleType, make: Any, budget: int) -> None:
    engine = make(kv_cache__blocks=5, kv_cache__block_tokens=1, scheduler__token_budget=budget)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    for index in range(3):
        engine.add([97 + index], params, request_id=f"r{index}")
    outputs = run(engine, most=120)
    for index in range(3):
        assert outputs[f"r{index}"].token_ids == fake.reference([97 + index], params)[0]


def test_preempted_at_every_possible_moment(fake: ModuleType, make: Any) -> None:
    prompt = [97 + i % 5 for i in range(13)]
    params = SamplingParams(max_tokens=9, ignore_eos=True, temperature=1.0, seed=5)
    wanted = fake.reference(prompt, params, seed=5)[0]
    for moment in range(12):
        engine = make(scheduler__prefill_chunk=4)
        engine.add(prompt, params, request_id="a")
        for _ in range(moment):
            engine.step()
        happened = engine._scheduler.preempt("a")
        assert happened == (moment > 0)
        assert engine.gauges()["kv_blocks_used"] == 0
        assert run(engine)["a"].token_ids == wanted, moment
        # Recomputation after the first output token is decode: the phase follows the request.
        tail = [row.phase for plan in engine.fake.plans[moment:] for row in plan.rows]
        assert (tail[0] == "decode") == (moment >= 4)


def test_planning_does_not_get_slower_with_finished_requests(make: Any) -> None:
    """Counted by what is kept, not by the clock: nothing remembers a finished request once its output is taken."""
    engine = make()
    engine.generate([[97]] * 200, SamplingParams(max_tokens=2, ignore_eos=True))
    scheduler = engine._scheduler
    assert (scheduler._live, scheduler._running) == ({}, {})
    assert len(scheduler._heap) <= 1
    engine.add([97], LONG, request_id="runs")
    engine.add([97], LONG, request_id="waits")
    for _ in range(1000):  # come and gone while nobody gets a slot
        engine.abort(engine.add([97] * 9, LONG))
    assert len(scheduler._heap) < 100
    assert {"runs", "waits"} < set(run(engine))
    assert not engine._hub._open
    assert not engine._hub._done
    assert not engine._hub._subscribers
