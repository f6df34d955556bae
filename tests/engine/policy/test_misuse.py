"""What callers get wrong: a typed error at once, and nothing left behind."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from intaglio.config import EngineConfig, KVCacheConfig, from_flat
from intaglio.engine import Engine
from intaglio.errors import ConfigError, RequestError, UnknownRequestError
from intaglio.intake.request import SamplingParams

SHORT = SamplingParams(max_tokens=3, ignore_eos=True)


@pytest.mark.parametrize(
    "config",
    ["tiny", None, {"model": "tiny"}, EngineConfig(numerics="invariant"), EngineConfig(kv_cache=False),  # type: ignore[arg-type]
     EngineConfig(numerics=KVCacheConfig()), EngineConfig(dtype=["fp32"]), EngineConfig(model=5)],  # type: ignore[arg-type]
)  # fmt: skip
def test_what_is_no_configuration_is_a_configuration_error(config: Any) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Engine(config)


@pytest.mark.parametrize(
    "values", [{"scheduler.max_model_len": 5000}, {"kv_cache.memory_mib": 1, "kv_cache.block_tokens": 1024}]
)
def test_a_configuration_that_does_not_fit_the_model_lets_its_workers_go(
    fake: ModuleType, values: dict[str, int]
) -> None:
    class Wide(fake.HashRunner):  # type: ignore[misc,name-defined]
        def describe(self) -> dict[str, Any]:
            return {**super().describe(), "kv_bytes_per_token": (1024, 1024)}

    runner = Wide(4)
    with pytest.raises(ConfigError, match=next(iter(values))):
        fake.make_engine(from_flat(values), runner)
    assert runner.closed


@pytest.mark.parametrize("path", [5, None, b"dtype", ("dtype",)])
def test_a_path_that_is_no_text_is_a_configuration_error(path: Any) -> None:
    with pytest.raises(ConfigError, match="path"):
        from_flat({path: 1})


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.generate(None),
        lambda e: e.generate(5),
        lambda e: e.generate({"prompt": "a"}),
        lambda e: e.generate(text for text in ["a"]),
        lambda e: e.generate("a", 5),
        lambda e: e.generate("a", "b"),
        lambda e: e.generate("a", {"max_tokens": 3}),
        lambda e: e.stream(None),
        lambda e: e.add({}),
        lambda e: e.add("a", SHORT, enqueued_ns="soon"),
        lambda e: e.add("a", SHORT, enqueued_ns=1.5),
        lambda e: e.add("a", SHORT, enqueued_ns=-1),
        lambda e: e.add("a", SHORT, enqueued_ns=time.perf_counter_ns() + 10**12),
        lambda e: e.add("a", SHORT, return_logits="yes"),
        lambda e: e.add("a", SHORT, request_id=["x"]),
    ],
)
def test_a_call_that_is_none_is_a_request_error(make: Any, call: Callable[[Any], object]) -> None:
    engine = make()
    with pytest.raises(RequestError) as caught:
        call(engine)
    assert caught.value.field
    assert not engine.has_work
    assert engine.counters()["requests_admitted"] == 0
    assert engine.generate("abc", SHORT)[0].finish_reason == "length"


@pytest.mark.parametrize("request_id", [None, 7, [], {}])
def test_an_id_that_is_none_names_no_request(make: Any, request_id: Any) -> None:
    engine = make()
    assert engine.abort(request_id) is False
    with pytest.raises(UnknownRequestError):
        engine.output(request_id)


def test_closing_a_stream_that_was_never_read_aborts_its_request(make: Any) -> None:
    engine = make()
    stream = engine.stream("abc", SHORT)
    assert engine.gauges()["waiting"] == 1
    stream.close()
    assert engine.gauges()["waiting"] == 0
    assert engine.output(stream.request_id).finish_reason == "abort"
    assert list(stream) == []
    with engine.stream("abc", SHORT) as read:
        next(read)
    assert not engine.has_work
    assert engine.output(read.request_id).finish_reason == "abort"
    stream.close()
    assert engine.counters()["requests_aborted"] == 2


@pytest.mark.parametrize("events", [0, 1])
def test_a_dropped_stream_frees_its_blocks(make: Any, events: int) -> None:
    engine = make()
    stream = engine.stream("abc", SHORT)
    for _ in range(events):
        next(stream)
    del stream
    gc.collect()
    assert engine.generate("abd", SHORT)[0].finish_reason == "length"
    assert not engine.has_work
    assert engine.counters()["requests_aborted"] == 1
    assert engine.gauges()["kv_blocks_used"] == 0
    engine.check_integrity()


def test_a_stream_that_was_read_to_its_end_aborts_nothing(make: Any) -> None:
    engine = make()
    stream = engine.stream("abc", SHORT)
    assert [event.finish_reason for event in stream] == [None, None, "length"]
    stream.close()
    assert engine.output(stream.request_id).finish_reason == "length"
    assert engine.counters()["requests_aborted"] == 0


def test_an_id_used_again_while_its_aborted_request_is_in_flight_keeps_its_own_trace(make: Any) -> None:
    engine = make()
    engine.add("abc", SHORT, request_id="a")
    engine.add("abcdef", SHORT, request_id="b")
    added: list[int] = []

    def replace(_: object) -> None:
        engine.fake.during = None
        engine.abort("a")
        engine.output("a")
        added.append(time.perf_counter_ns())
        engine.add("xyz", SHORT, request_id="a")

    engine.fake.during = replace
    while engine.has_work:
        engine.step()
    output = engine.output("a")
    own = [span for span in engine.trace.drain() if span.request_id == "a" and span.start_ns >= added[0]]
    at = output.enqueued_ns
    for span in own:
        assert span.start_ns == at
        at += span.wall_ns
    assert at == output.done_ns
    assert [span.tokens for span in own if span.phase in ("prefill", "decode")] == [3, 1, 1]


def test_characters_that_the_vocabulary_lacks_are_told(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    monkeypatch.setattr(type(engine.tokenizer), "unencodable", lambda self, text: "b" if "b" in text else "")
    first, second, third = engine.generate(["abc", "acd", [97, 98]], SHORT)
    events = [event for event in engine.drain_events() if event["kind"] == "characters_lost"]
    assert [(event["request_id"], event["characters"]) for event in events] == [(first.request_id, "'b'")]
    assert [output.finish_reason for output in (first, second, third)] == ["length"] * 3
