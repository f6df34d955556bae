"""A disk that refuses, and tenants that are none: typed errors from every method, and nothing left behind."""

from __future__ import annotations

import os

import pytest

from intaglio import loading
from intaglio.config import from_flat
from intaglio.errors import ConfigError, ContextError, RequestError, UnknownContextError
from intaglio.intake.request import SamplingParams

DOCUMENT = [97 + (5 * i) % 8 for i in range(18)]
ABSENT = "ctx-" + "0" * 24


def test_a_folder_that_cannot_be_made_is_a_typed_error(make_contexts, tmp_path):
    engine = make_contexts(context_cache__folder=str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    with pytest.raises(ContextError, match="cannot be saved") as caught:
        engine.contexts.create(DOCUMENT)
    assert caught.value.field == "context_cache.folder"
    assert engine.gauges()["kv_blocks_used"] == 0
    engine.check_integrity()
    assert engine.contexts.list() == []


def test_a_context_deleted_by_another_process_is_gone_here_too(make_contexts):
    first, second = make_contexts(), make_contexts()
    info = first.contexts.create(DOCUMENT)
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    running = first.add([97, 98], params, context=info.id)
    first.step()
    second.contexts.delete(info.id)
    with pytest.raises(UnknownContextError):
        first.add([97, 98], params, context=info.id)
    while first.has_work:
        first.step()
        first.check_integrity()
    assert first.output(running).cached_tokens == 16
    assert first.gauges()["kv_blocks_used"] == 0


def refuse(*_args, **_named):
    raise OSError(28, "No space left on device")


def test_a_manifest_that_cannot_be_written_leaves_the_old_end(make_contexts, monkeypatch):
    engine = make_contexts()
    info = engine.contexts.create(DOCUMENT)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(ContextError, match="No space left") as caught:
            engine.contexts.refresh(info.id, ttl_s=5)
    assert caught.value.field == "context_cache.folder"
    assert engine.contexts.get(info.id) == info


def test_a_context_that_cannot_be_removed_is_a_typed_error_and_stays(make_contexts, monkeypatch):
    engine = make_contexts()
    info = engine.contexts.create(DOCUMENT)
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.rename", refuse)
        with pytest.raises(ContextError, match="cannot be deleted"):
            engine.contexts.delete(info.id)
    assert [kept.id for kept in engine.contexts.list()] == [info.id]
    engine.contexts.delete(info.id)
    assert engine.contexts.list() == []
    engine.check_integrity()


@pytest.mark.parametrize("tenant", [5, None, b"x", "\ud800", "x" * 257], ids=repr)
def test_a_tenant_that_is_none_is_refused_by_every_method(make_contexts, tenant):
    contexts = make_contexts().contexts
    calls = (
        lambda: contexts.create(DOCUMENT, tenant=tenant),
        lambda: contexts.get(ABSENT, tenant),
        lambda: contexts.list(tenant),
        lambda: contexts.refresh(ABSENT, tenant),
        lambda: contexts.delete(ABSENT, tenant),
    )
    for call in calls:
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.field == "tenant"


@pytest.mark.parametrize("folder", ["~no-such-user/x", "a\0b"], ids=ascii)
def test_a_folder_that_can_be_no_path_is_a_typed_error(folder):
    with pytest.raises(ConfigError) as caught:
        loading.contexts_folder(from_flat({"context_cache.folder": folder}))
    assert caught.value.field == "context_cache.folder"
