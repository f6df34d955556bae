"""Swap instead of recompute: the same text with less work, and with any harm to a copy the same text with more."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from intaglio.config import from_flat
from intaglio.errors import ConfigError
from intaglio.intake.request import SamplingParams

LONG = SamplingParams(max_tokens=24, ignore_eos=True)
# Two groups of 8 and 24 bytes a token, four tokens a block.
BLOCK_BYTES = 4 * (8 + 24)


@pytest.fixture
def make(moving):
    engines = []

    def build(**values):
        flat = {"kv_cache.block_tokens": 4, "kv_cache.blocks": 12, "host_tier.enabled": True}
        flat |= {key.replace("__", "."): value for key, value in values.items()}
        engine = moving.make_engine(from_flat(flat))
        engines.append(engine)
        return engine

    yield build
    for engine in engines:
        engine.check_integrity()
        traffic = engine._traffic
        if traffic is not None and not engine.has_work:
            assert traffic.tier.used == 0
            assert engine.gauges()["kv_blocks_used"] == 0
        engine.close()


def prompts(count=4, length=10):
    return [[97 + (7 * i + j) % 8 for j in range(length + i)] for i in range(count)]


def check(fake, outputs, asked, params=LONG):
    for output, prompt in zip(outputs, asked, strict=True):
        assert output.error is None
        assert output.token_ids == fake.reference(prompt, params)[0]


def test_preempted_requests_come_back_without_computing_a_token_twice(make, moving):
    asked, counts = prompts(), {}
    needed = sum(len(p) + LONG.max_tokens - 1 for p in asked)
    for swap in (True, False):
        engine = make(host_tier__enabled=swap)
        check(moving.fake, engine.generate(asked, LONG), asked)
        counts[swap] = engine.counters()
    on, off = counts[True], counts[False]
    assert min(on["preemptions"], off["preemptions"]) > 0
    assert on["tokens_recomputed"] == 0
    assert on["tokens_computed"] == needed
    assert off["tokens_computed"] == needed + off["tokens_recomputed"] > needed
    assert on["swap_out_blocks"] == on["swap_in_blocks"] > 0
    assert on["swap_bytes"] == 2 * BLOCK_BYTES * on["swap_out_blocks"]
    assert on["swap_failures"] == off["swap_out_blocks"] == off["swap_bytes"] == 0


def test_the_blocks_given_up_are_read_before_the_step_reuses_them(make, moving):
    engine = make(kv_cache__blocks=10)
    reused = []

    def look(plan):
        out = {(m.group, m.block) for m in plan.moves if m.kind == "copy_out"}
        named = {(g, b) for row in plan.rows for g, table in enumerate(row.block_tables) for b in table}
        reused.extend(out & named)

    engine.fake.during = look
    asked = prompts()
    check(moving.fake, engine.generate(asked, LONG), asked)
    assert reused  # the very step that copies a block out also gives it to somebody else


def test_a_request_does_not_compute_before_its_blocks_are_verified(make, moving):
    engine = make()
    asked = prompts()
    check(moving.fake, engine.generate(asked, LONG), asked)
    seen = 0
    for plan in engine.fake.plans:
        filled = {(m.group, m.block) for m in plan.moves if m.kind == "copy_in"}
        named = {(g, b) for row in plan.rows for g, table in enumerate(row.block_tables) for b in table}
        seen += len(filled)
        assert not filled & named
    assert seen == 2 * engine.counters()["swap_in_blocks"] > 0


@pytest.mark.parametrize("fault", ["fail", "short", "late", "flip"])
@pytest.mark.parametrize("way", ["copy_out", "copy_in"])
def test_a_harmed_copy_is_recomputed_and_counted_and_nobody_else_notices(make, moving, fault, way):
    engine, harmed = make(), []

    def once(move):
        if move.kind != way or harmed:
            return ""
        harmed.append(move)
        return fault

    engine.fake.fault = once
    asked = prompts()
    check(moving.fake, engine.generate(asked, LONG), asked)
    counters = engine.counters()
    assert len(harmed) == 1
    assert counters["swap_failures"] == 1
    assert counters["requests_failed"] == 0
    assert 0 < counters["tokens_recomputed"] <= max(len(p) + LONG.max_tokens for p in asked)
    needed = sum(len(p) + LONG.max_tokens - 1 for p in asked)
    assert counters["tokens_computed"] == needed + counters["tokens_recomputed"]
    (event,) = [e for e in engine.drain_events() if e["kind"] == "swap_failed"]
    assert event["request_id"] and event["message"]


@pytest.mark.parametrize("fault", ["fail", "short", "late", "flip"])
def test_a_host_tier_that_never_works_is_as_good_as_none(make, moving, fault):
    engine = make()
    engine.fake.fault = lambda move: fault if move.kind == "copy_in" or fault != "flip" else ""
    asked = prompts()
    check(moving.fake, engine.generate(asked, LONG), asked)
    counters = engine.counters()
    assert counters["swap_failures"] == counters["preemptions"] > 0
    assert counters["swap_in_blocks"] == 0
    assert counters["tokens_recomputed"] > 0


def test_when_host_memory_is_full_the_victim_recomputes(make, moving):
    engine = make()
    engine._traffic.tier.slots = 2
    asked = prompts()
    check(moving.fake, engine.generate(asked, LONG), asked)
    counters = engine.counters()
    full = [e for e in engine.drain_events() if e["kind"] == "host_tier_full"]
    assert full and counters["tokens_recomputed"] > 0
    assert counters["swap_failures"] == 0


def test_a_step_that_fails_loses_its_copies_but_not_the_requests_they_belong_to(make, moving):
    plain = make()
    asked = prompts()
    plain.generate(asked, LONG)
    steps = [plan.step for plan in plain.fake.plans if plan.moves]
    assert len(steps) >= 2
    for step in steps[:4]:
        engine = make()
        engine.fake.fail = {step}
        outputs = engine.generate(asked, LONG)
        movers = engine.fake.plans[step - 1].moves
        assert movers
        failed = {row.request_id for row in engine.fake.plans[step - 1].rows}
        assert [o.error is not None for o in outputs] == [o.request_id in failed for o in outputs]
        for output, prompt in zip(outputs, asked, strict=True):
            if output.error is None:
                assert output.token_ids == moving.fake.reference(prompt, LONG)[0]
        assert engine.counters()["swap_failures"] == 1


def test_who_comes_back_while_others_use_up_the_budget_waits_instead_of_computing_nothing(make, moving):
    """Coming back takes no part of the budget, so there may be more running requests than it serves."""
    engine = make(kv_cache__blocks=64, scheduler__token_budget=8)
    rows = []
    engine.fake.during = lambda plan: rows.extend(len(row.tokens) for row in plan.rows)
    asked = prompts(count=2, length=40)
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    names = [engine.add(asked[0], params)]
    engine.step()
    engine.step()
    assert engine._scheduler.preempt(names[0])  # in the middle of its prompt
    names.append(engine.add(asked[1], params))
    for _ in range(60):
        engine.step()
    check(moving.fake, [engine.output(name) for name in names], asked, params)
    assert engine.counters()["swap_in_blocks"] == 4
    assert min(rows) >= 1  # a worker refuses a row without tokens, and the request with it
    assert max(rows) == 8


@pytest.mark.parametrize("kind", ["copy_out", "copy_in"])
def test_an_abort_while_its_blocks_move_frees_everything_at_the_steps_end(make, moving, kind):
    engine, gone = make(), []

    def look(plan):
        rows = {row.request_id for row in plan.rows}
        if not gone and any(move.kind == kind for move in plan.moves):
            moved = set(engine._scheduler.traffic.transfers.movers(plan.step)) - rows
            gone.append(moved.pop())
            assert engine.abort(gone[0])
            engine.check_integrity()

    engine.fake.during = look
    asked = prompts()
    outputs = engine.generate(asked, LONG)
    assert [o.finish_reason for o in outputs].count("abort") == 1
    for output, prompt in zip(outputs, asked, strict=True):
        if output.finish_reason != "abort":
            assert output.token_ids == moving.fake.reference(prompt, LONG)[0]
    engine.check_integrity()
    assert engine._traffic.tier.used == 0
    assert engine.gauges()["kv_blocks_used"] == 0


def test_the_time_of_moving_is_traced_as_transfer_of_the_request_that_moves(make):
    engine = make()
    asked = prompts()
    outputs = engine.generate(asked, LONG)
    spans = [span for span in engine.trace.drain() if (span.stage, span.phase) == ("state", "transfer")]
    moved = sum(span.bytes for span in spans)
    assert moved == engine.counters()["swap_bytes"]
    assert {span.request_id for span in spans if span.bytes} <= {o.request_id for o in outputs}


def test_memory_too_small_for_a_block_and_a_tier_without_a_cache_are_refused(make):
    with pytest.raises(ConfigError, match=r"kv_cache\.enabled"):
        make(kv_cache__enabled=False)
    with pytest.raises(ConfigError, match=r"host_tier\.memory_mib"):
        make(kv_cache__block_tokens=1024, host_tier__memory_mib=0)


@pytest.mark.parametrize("seed", range(25))
def test_random_traffic_never_changes_a_text_or_leaks_a_block(make, moving, seed):
    """Random pools, budgets, arrivals, aborts, faults and failed steps; every text as if computed alone."""
    draw = random.Random(seed)
    engine = make(
        kv_cache__blocks=draw.randint(5, 12),
        scheduler__token_budget=draw.randint(1, 20),
        scheduler__max_running=draw.randint(2, 5),
        prefix_cache__enabled=draw.random() < 0.5,
    )
    if draw.random() < 0.5:
        engine._traffic.tier.slots = draw.randint(1, 8)
    harm = draw.choice([0.0, 0.1, 0.4])
    engine.fake.fault = lambda move: (
        draw.choice(["fail", "short", "late", "flip"]) if draw.random() < harm else ""
    )
    engine.fake.fail = {step for step in range(1, 400) if draw.random() < 0.02}
    live, params, ended = {}, {}, Counter()
    for turn in range(4000):
        if turn < 60 and draw.random() < 0.4:
            prompt = [draw.randint(97, 99) for _ in range(draw.randint(1, 12))]
            own = SamplingParams(max_tokens=draw.randint(1, 8), ignore_eos=True)
            name = engine.add(prompt, own)
            live[name], params[name] = prompt, own
        if live and draw.random() < 0.05:
            engine.abort(draw.choice(sorted(live)))
        engine.step()
        engine.check_integrity()
        for name in [n for n in live if engine._scheduler.get(n) is None]:
            output = engine.output(name)
            ended[output.finish_reason] += 1
            if output.finish_reason == "length":
                assert output.token_ids == moving.fake.reference(live[name], params[name])[0]
            del live[name]
        if turn > 60 and not engine.has_work:
            break
    assert not live, "requests never ended"
    assert ended["length"] > 0
    assert engine._traffic.tier.used == 0
    assert engine.gauges()["kv_blocks_used"] == 0
