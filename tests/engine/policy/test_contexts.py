"""Explicit contexts: computed once, read by id, owned by one tenant, and never a wrong text whatever happens to them."""

from __future__ import annotations

import threading

import pytest

from intaglio.errors import (
    CapacityError,
    ContextError,
    ContextExpiredError,
    ContextMismatchError,
    ContextQuotaError,
    EmptyPromptError,
    PromptTooLongError,
    UnknownContextError,
)
from intaglio.intake.request import SamplingParams

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)
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


def test_a_document_is_computed_once_and_read_by_every_request(make, moving):
    engine = make()
    info = engine.contexts.create(DOCUMENT, name="manual")
    assert (info.tokens, info.name, info.version, info.tenant) == (18, "manual", 1, "")
    assert info.bytes == 4 * 4 * (8 + 24) + 4 * 18
    before = engine.counters()
    assert before["tokens_computed"] == 16
    assert engine.fake.moved["save"] == 2 * 4  # four blocks of two groups
    outputs = engine.generate(QUESTIONS, PARAMS, context=info.id)
    check(moving.fake, outputs)
    after = engine.counters()
    # The two tokens behind the last full block, the question, and all new tokens but the last.
    assert after["tokens_computed"] - before["tokens_computed"] == 4 * (2 + 3 + 5)
    assert [o.cached_tokens for o in outputs] == [16] * 4
    assert [o.tokens_computed for o in outputs] == [10] * 4
    assert after["context_hit_tokens"] == 4 * 16
    assert engine.gauges()["kv_blocks_used"] == 4  # resident, once
    assert engine.fake.moved["load"] == 0


def test_it_survives_a_restart_and_is_loaded_once(make, moving):
    info = make().contexts.create(DOCUMENT)
    engine = make()
    assert engine.contexts.get(info.id) == info
    assert engine.contexts.list() == [info]
    check(moving.fake, engine.generate(QUESTIONS, PARAMS, context=info.id))
    counters = engine.counters()
    assert counters["context_loads"] == 1
    assert counters["context_load_bytes"] == 4 * 4 * (8 + 24)
    assert engine.fake.moved["load"] == 2 * 4
    assert counters["tokens_computed"] == 4 * (2 + 3 + 5)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_a_document_of_any_length_down_to_less_than_a_block(make, moving, length):
    engine, document = make(), DOCUMENT[:length]
    info = engine.contexts.create(document)
    outputs = engine.generate(QUESTIONS, PARAMS, context=info.id)
    check(moving.fake, outputs, document)
    assert [o.cached_tokens for o in outputs] == [length // 4 * 4] * 4
    again = make()
    check(moving.fake, again.generate(QUESTIONS, PARAMS, context=info.id), document)


def test_text_is_tokenised_apart_from_the_prompt(make, moving):
    engine = make()
    info = engine.contexts.create("abcdefgh")
    (output,) = engine.generate("ab", PARAMS, context=info.id)
    assert output.prompt_token_ids == list(b"abcdefghab")
    name = engine.add("ab", PARAMS, context=info.id)
    while engine.has_work:
        engine.step()
    assert engine.output(name).token_ids == output.token_ids
    events = list(engine.stream("ab", PARAMS, context=info.id))
    assert [e.token_id for e in events] == output.token_ids


def test_another_tenant_sees_nothing_of_it(make, moving):
    engine = make()
    info = engine.contexts.create(DOCUMENT, tenant="ada")
    assert engine.contexts.list("ada") == [info]
    check(moving.fake, engine.generate(QUESTIONS, PARAMS, tenant="ada", context=info.id))
    seen = []
    for tenant, context in (("bob", info.id), ("", info.id), ("bob", "ctx-" + "0" * 24)):
        assert engine.contexts.list(tenant) == []
        for act in (
            lambda t, c: engine.contexts.get(c, t),
            lambda t, c: engine.contexts.refresh(c, t),
            lambda t, c: engine.contexts.delete(c, t),
            lambda t, c: engine.add([97], PARAMS, tenant=t, context=c),
        ):
            with pytest.raises(UnknownContextError) as caught:
                act(tenant, context)
            seen.append(str(caught.value).replace(context, "ID"))
    assert len(set(seen)) == 1  # no word tells an existing one from none
    assert engine.contexts.get(info.id, "ada") == info


@pytest.mark.parametrize("context", ["", "nonsense", "../x", "ctx-" + "z" * 24, "ctx-" + "0" * 24, "\0", 7])
def test_an_id_that_names_nothing_is_unknown(make, context):
    engine = make()
    for act in (engine.contexts.get, engine.contexts.delete, engine.contexts.refresh):
        with pytest.raises(UnknownContextError):
            act(context)
    with pytest.raises(UnknownContextError):
        engine.add([97], PARAMS, context=context)
    assert engine.counters()["requests_rejected"] == 1
    assert not engine.has_work


def test_time_to_live_ends_it_and_a_refresh_prolongs_it(make, moving):
    engine, now = make(), [1000.0]
    engine.contexts.clock = lambda: now[0]
    short = engine.contexts.create(DOCUMENT, ttl_s=10)
    assert short.expires_utc == "1970-01-01T00:16:50.000Z"
    now[0] = 1009.0
    refreshed = engine.contexts.refresh(short.id, ttl_s=20)
    assert refreshed.expires_utc == "1970-01-01T00:17:09.000Z"
    assert refreshed.sha256 == short.sha256
    now[0] = 1028.0
    check(moving.fake, engine.generate(QUESTIONS, PARAMS, context=short.id))
    now[0] = 1029.0
    for act in (engine.contexts.get, engine.contexts.refresh):
        with pytest.raises(ContextExpiredError):
            act(short.id)
    with pytest.raises(ContextExpiredError):
        engine.add([97], PARAMS, context=short.id)
    assert engine.contexts.list() == []
    assert engine.gauges()["kv_blocks_used"] == 0  # its blocks went with it
    engine.contexts.create(DOCUMENT)  # takes the expired one away
    assert not folder_of(engine, short).exists()
    with pytest.raises(UnknownContextError):
        engine.contexts.get(short.id)


def test_the_quota_is_each_tenants_own_and_checked_before_work(make):
    engine = make(context_cache__quota_mib=1, kv_cache__blocks=1100)
    document = DOCUMENT * 222  # 3,996 tokens of 32 bytes of KV and 4 of text: seven fit into a MiB
    made = [engine.contexts.create(document) for _ in range(7)]
    assert 7 * made[0].bytes <= 1 << 20 < 8 * made[0].bytes
    before = engine.counters()
    with pytest.raises(ContextQuotaError, match=r"context_cache\.quota_mib"):
        engine.contexts.create(document)
    assert engine.counters()["tokens_computed"] == before["tokens_computed"]
    assert engine.contexts.list() == made
    engine.contexts.create(document, tenant="bob")
    engine.contexts.delete(made[3].id)
    engine.contexts.create(document)
    assert len(engine.contexts.list()) == 7


def test_a_refresh_by_another_process_counts(make, moving):
    engine, other, now = make(), make(), [1000.0]
    engine.contexts.clock = other.contexts.clock = lambda: now[0]
    info = engine.contexts.create(DOCUMENT, ttl_s=10)
    other.contexts.refresh(info.id, ttl_s=100)
    now[0] = 1020.0
    check(moving.fake, engine.generate(QUESTIONS, PARAMS, context=info.id))
    assert engine.counters()["context_hit_tokens"] == 4 * 16


def test_documents_are_created_while_another_thread_drives_the_engine(make, moving):
    engine, stop, failed = make(), threading.Event(), []

    def drive():
        try:
            while not stop.is_set():
                engine.step()
        except Exception as error:
            failed.append(error)

    driver = threading.Thread(target=drive)
    driver.start()
    try:
        infos = [engine.contexts.create(DOCUMENT, tenant=tenant) for tenant in ("a", "b", "a")]
    finally:
        stop.set()
        driver.join(timeout=30)
    assert not driver.is_alive() and not failed
    assert engine.counters()["contexts_created"] == 3
    for info in infos:
        outputs = engine.generate(QUESTIONS, PARAMS, tenant=info.tenant, context=info.id)
        check(moving.fake, outputs)
        assert [o.cached_tokens for o in outputs] == [16] * 4


def test_versions_count_the_contexts_of_a_name(make):
    engine = make()
    made = [engine.contexts.create(DOCUMENT, name=name) for name in ("a", "a", "b")]
    assert [info.version for info in made] == [1, 2, 1]
    assert len({info.id for info in made}) == 3


@pytest.mark.parametrize("change", [{"kv_cache__block_tokens": 8}, {"dtype": "fp32"}], ids=str)
def test_a_context_of_another_configuration_is_refused_by_name(make, change):
    info = make().contexts.create(DOCUMENT)
    engine = make(**change)
    with pytest.raises(ContextMismatchError, match=next(iter(change)).split("__")[-1]):
        engine.add([97], PARAMS, context=info.id)
    assert engine.contexts.get(info.id).id == info.id  # it is still there


def test_a_context_longer_than_this_engine_can_take_is_refused(make):
    info = make().contexts.create(DOCUMENT)
    with pytest.raises(PromptTooLongError):
        make(scheduler__max_model_len=20).add([97], PARAMS, context=info.id)
    with pytest.raises(CapacityError):
        make(kv_cache__blocks=4).add([97], PARAMS, context=info.id)
    with pytest.raises(EmptyPromptError):
        make().add([], PARAMS, context=info.id)


def test_switched_off_it_says_so(make):
    engine = make(context_cache__enabled=False)
    with pytest.raises(ContextError, match=r"context_cache\.enabled=true"):
        engine.contexts.create(DOCUMENT)
    with pytest.raises(ContextError, match=r"context_cache\.enabled=true"):
        engine.add([97], PARAMS, context="ctx-" + "0" * 24)


@pytest.mark.parametrize("ttl", [0, -1, True, "1", float("nan"), float("inf")])
def test_a_wrong_time_to_live_is_refused(make, ttl):
    with pytest.raises(ContextError, match="ttl_s"):
        make().contexts.create(DOCUMENT, ttl_s=ttl)


def test_unused_contexts_make_room_and_are_loaded_again(make, moving):
    """A pool of 12 blocks and three documents of 4: they take turns on the device, and nobody is preempted."""
    engine = make(kv_cache__blocks=12)
    documents = [[97 + (k + 3 * i) % 8 for i in range(18)] for k in range(3)]
    infos = [engine.contexts.create(document) for document in documents]
    for _ in range(2):
        for document, info in zip(documents, infos, strict=True):
            check(moving.fake, engine.generate(QUESTIONS, PARAMS, context=info.id), document)
            engine.check_integrity()
    counters = engine.counters()
    assert counters["context_evictions"] >= 3
    assert counters["context_loads"] >= 3
    assert counters["context_hit_tokens"] == 2 * 3 * 4 * 16
    assert counters["tokens_computed"] == 3 * 16 + 2 * 3 * 4 * 10
