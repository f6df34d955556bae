"""Contexts that are damaged, lost, deleted in use or under random traffic: a typed error or the right text."""

from __future__ import annotations

import random
import threading

import pytest

from intaglio.errors import (
    ContextDamagedError,
    ContextError,
    UnknownContextError,
)
from intaglio.intake.request import SamplingParams
from intaglio.state.context_files import MANIFEST, payload

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)
LONGER = SamplingParams(max_tokens=14, ignore_eos=True)
DOCUMENT = [97 + (5 * i) % 8 for i in range(18)]  # four blocks of four, and two tokens
QUESTIONS = [[98, 99, 100 + i] for i in range(4)]


@pytest.fixture
def make(make_contexts):
    return make_contexts


def check(fake, outputs, document=DOCUMENT, questions=QUESTIONS):
    assert [o.error for o in outputs] == [None] * len(questions)
    for output, question in zip(outputs, questions, strict=True):
        assert output.prompt_token_ids == document + question
        assert output.token_ids == fake.reference(document + question, PARAMS)[0]


def folder_of(engine, info):
    return engine.contexts._files.place(info.tenant, info.id)


def test_deleted_while_in_use_the_running_finish_and_new_ones_are_refused(make, moving):
    engine = make(scheduler__max_running=2)
    info = engine.contexts.create(DOCUMENT)
    names = [engine.add(question, PARAMS, context=info.id) for question in QUESTIONS]
    engine.step()
    assert engine.gauges()["running"] == 2 and engine.gauges()["waiting"] == 2
    engine.contexts.delete(info.id)
    assert not folder_of(engine, info).exists()
    with pytest.raises(UnknownContextError):
        engine.add([97], PARAMS, context=info.id)
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    outputs = [engine.output(name) for name in names]
    check(moving.fake, outputs)
    assert [o.cached_tokens for o in outputs] == [16] * 4  # those that waited too
    assert engine.gauges()["kv_blocks_used"] == 0


def test_deleted_from_another_thread_while_a_step_reads_it(make, moving):
    engine = make()
    info = engine.contexts.create(DOCUMENT)
    names = [engine.add(question, PARAMS, context=info.id) for question in QUESTIONS]
    done = []

    def look(plan):
        if not done and plan.rows:
            done.append(plan.step)
            other = threading.Thread(target=engine.contexts.delete, args=(info.id,))
            other.start()
            other.join(timeout=30)
            assert not other.is_alive()
            for name in names[:2]:
                engine.abort(name)
            engine.check_integrity()

    engine.fake.during = look
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    assert done
    outputs = [engine.output(name) for name in names]
    assert [o.finish_reason for o in outputs] == ["abort", "abort", "length", "length"]
    check(moving.fake, outputs[2:], questions=QUESTIONS[2:])
    assert engine.gauges()["kv_blocks_used"] == 0


@pytest.mark.parametrize("harm", ["manifest", "payload", "truncated", "gone"])
def test_a_damaged_context_is_refused_and_can_be_deleted(make, harm):
    info = make().contexts.create(DOCUMENT)
    engine = make()
    place = folder_of(engine, info)
    path = place / MANIFEST if harm == "manifest" else payload(place, 1)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 8
    path.write_bytes(raw[:-1] if harm == "truncated" else raw)
    if harm == "gone":
        path.unlink()
    with pytest.raises(ContextDamagedError, match="create it again"):
        engine.add([97], PARAMS, context=info.id)
    assert engine.counters()["context_loads"] == 0
    assert not engine.has_work
    engine.contexts.delete(info.id)
    assert engine.contexts.list() == []


def test_damage_that_comes_after_the_check_means_recompute(make, moving):
    info = make().contexts.create(DOCUMENT)
    engine = make()
    names = [engine.add(question, PARAMS, context=info.id) for question in QUESTIONS]
    path = payload(folder_of(engine, info), 0)
    raw = bytearray(path.read_bytes())
    raw[3] ^= 8
    path.write_bytes(raw)
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    outputs = [engine.output(name) for name in names]
    check(moving.fake, outputs)
    assert [o.cached_tokens for o in outputs] == [0] * 4
    counters = engine.counters()
    assert (counters["context_load_failures"], counters["context_loads"]) == (1, 0)
    assert counters["tokens_computed"] == 4 * (18 + 3 + 5)
    with pytest.raises(ContextDamagedError):
        engine.add([97], PARAMS, context=info.id)


def test_a_failed_load_is_tried_again_where_the_file_is_whole(make, moving):
    info = make().contexts.create(DOCUMENT)
    engine = make()
    engine.fake.fault = lambda move: "late"
    check(moving.fake, engine.generate(QUESTIONS[:1], PARAMS, context=info.id), questions=QUESTIONS[:1])
    engine.fake.fault = lambda move: ""
    check(moving.fake, engine.generate(QUESTIONS, PARAMS, context=info.id))
    counters = engine.counters()
    assert (counters["context_load_failures"], counters["context_loads"]) == (1, 1)
    assert counters["context_hit_tokens"] == 4 * 16


@pytest.mark.parametrize("fault", ["fail", "late"])
def test_a_save_that_fails_leaves_nothing_behind(make, moving, fault):
    engine = make()
    engine.fake.fault = lambda move: fault if move.slot == 2 else ""
    with pytest.raises(ContextError, match="cannot be saved"):
        engine.contexts.create(DOCUMENT)
    assert engine.contexts.list() == []
    assert engine.gauges()["kv_blocks_used"] == 0
    engine.check_integrity()
    home = engine.contexts._files.place("", "x").parent
    assert list(home.iterdir()) == []
    engine.fake.fault = lambda move: ""
    info = engine.contexts.create(DOCUMENT)
    check(moving.fake, engine.generate(QUESTIONS, PARAMS, context=info.id))


def test_a_document_whose_step_fails_is_an_error_and_leaves_nothing_behind(make):
    engine = make()
    engine.fake.fail = {1}
    with pytest.raises(Exception, match="planned failure"):
        engine.contexts.create(DOCUMENT)
    assert engine.contexts.list() == []
    assert engine.gauges()["kv_blocks_used"] == 0
    assert not engine.has_work


@pytest.mark.parametrize("seed", range(20))
def test_random_traffic_over_contexts_never_changes_a_text_or_leaks_a_block(make, moving, seed):
    """Two tenants, small pools, swap, prefix cache, aborts, deletions, harmed moves and failed steps together."""
    draw = random.Random(seed)
    engine = make(
        kv_cache__blocks=draw.randint(8, 12),
        host_tier__enabled=draw.random() < 0.5,
        prefix_cache__enabled=draw.random() < 0.5,
        scheduler__max_running=draw.randint(1, 4),
        scheduler__token_budget=draw.randint(2, 30),
    )
    harm = draw.choice([0.0, 0.2])
    known, live, finished = {}, {}, 0
    for turn in range(3000):
        engine.fake.fault = lambda move: "flip" if move.kind != "save" and draw.random() < harm else ""
        if turn < 60 and draw.random() < 0.1:
            document = [draw.randint(97, 98) for _ in range(draw.randint(1, 14))]
            tenant = draw.choice(["", "ada"])
            known[engine.contexts.create(document, tenant=tenant).id] = (tenant, document)
        if turn < 60 and known and draw.random() < 0.6:
            context = draw.choice(list(known))
            tenant, document = known[context]
            question = [draw.randint(97, 98) for _ in range(draw.randint(1, 4))]
            try:
                live[engine.add(question, LONGER, tenant=tenant, context=context)] = document + question
            except ContextDamagedError:
                raise AssertionError("the files are whole") from None
        if known and draw.random() < 0.03:
            context = draw.choice(list(known))
            engine.contexts.delete(context, known.pop(context)[0])
        if live and draw.random() < 0.05:
            engine.abort(draw.choice(sorted(live)))
        engine.step()
        engine.check_integrity()
        for name in [n for n in live if engine._scheduler.get(n) is None]:
            output = engine.output(name)
            assert output.error is None
            if output.finish_reason == "length":
                finished += 1
                assert output.token_ids == moving.fake.reference(live[name], LONGER)[0]
            del live[name]
        if turn > 60 and not engine.has_work:
            break
    assert not live and finished > 0
    for context, (tenant, _) in known.items():
        engine.contexts.delete(context, tenant)
    assert engine.gauges()["kv_blocks_used"] == 0


def test_a_swapped_request_does_not_wait_for_the_room_its_own_context_takes(make, moving):
    """Its context's four blocks and its own eight do not fit together: the unused context must give way."""
    engine = make(kv_cache__blocks=11, host_tier__enabled=True)
    info = engine.contexts.create(DOCUMENT)
    long = SamplingParams(max_tokens=16, ignore_eos=True)
    names = [engine.add(question, long, context=info.id) for question in QUESTIONS[:3]]
    for _ in range(500):
        engine.step()
        engine.check_integrity()
        if not engine.has_work:
            break
    assert not engine.has_work
    for name, question in zip(names, QUESTIONS, strict=False):
        assert engine.output(name).token_ids == moving.fake.reference(DOCUMENT + question, long)[0]
    counters = engine.counters()
    assert counters["swap_in_blocks"] == counters["swap_out_blocks"] > 0
    assert counters["context_evictions"] > 0


def test_two_contexts_that_hold_the_same_blocks_still_make_room(make, moving):
    """With a prefix cache the second document is partly the first one's blocks; nobody uses either."""
    engine = make(kv_cache__blocks=8, prefix_cache__enabled=True)
    engine.contexts.create(DOCUMENT)
    engine.contexts.create(DOCUMENT[:14])
    assert engine.counters()["prefix_hit_blocks"] == 2
    prompt, long = [98] * 20, SamplingParams(max_tokens=10, ignore_eos=True)
    name = engine.add(prompt, long)
    for _ in range(100):
        engine.step()
        engine.check_integrity()
    assert engine.output(name).token_ids == moving.fake.reference(prompt, long)[0]
    assert engine.counters()["context_evictions"] == 2


def test_an_idle_context_makes_room_for_a_request_that_starts_with_cached_blocks(make, moving):
    """The found blocks count as available and are not: without them the room has to come from the context."""
    engine = make(prefix_cache__enabled=True, kv_cache__blocks=10)
    engine.contexts.create(DOCUMENT)
    first = [105 + i % 8 for i in range(13)]
    engine.generate([first], SamplingParams(max_tokens=1))
    longer = first[:12] + [97 + i % 8 for i in range(20)]
    name = engine.add(longer, PARAMS)
    for _ in range(60):
        engine.step()
        engine.check_integrity()
    output = engine.output(name)
    assert output.token_ids == moving.fake.reference(longer, PARAMS)[0]
    assert output.cached_tokens == 12
    assert engine.counters()["context_evictions"] == 1
