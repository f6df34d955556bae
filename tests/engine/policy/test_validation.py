"""Every bad request is a typed error that names the field and the fix, and leaves no trace in the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.config import from_flat
from intaglio.errors import (
    CapacityError,
    DuplicateRequestError,
    EmptyPromptError,
    IntaglioError,
    PromptEncodingError,
    PromptTooLongError,
    RequestError,
    SamplingParamsError,
    TokenRangeError,
    UnknownRequestError,
)
from intaglio.intake.request import SamplingParams
from intaglio.intake.validation import RequestLimits, check_fit, check_params, check_prompt_ids, check_text

LIMITS = RequestLimits(vocab_size=257, max_model_len=64, capacity=40, use_cache=True)
INF, NAN = math.inf, math.nan

BAD_PARAMS = {
    "max_tokens": [0, -1, 65, 10**9, 10**5000, 1.0, "3", True, None, NAN, np.int64(3)],
    "temperature": [-1.0, -1e-9, NAN, INF, -INF, 1e-300, 1e300, 10**400, "1", None, True, 1j, [1.0]],
    "top_p": [0, 0.0, -0.1, 1.0000001, NAN, INF, "0.5", None, False],
    "min_p": [-0.1, 1.0, 2, NAN, INF, "0", None, True],
    "top_k": [-1, 1.5, NAN, "1", None, True, 1 << 40],
    "repetition_penalty": [0, 0.0, -1.0, NAN, INF, 1e9, "1", None, True],
    "seed": [-1, 1 << 64, 1.0, "1", True, NAN],
    "stop": [
        "abc",
        ("",),
        (10**5000,),
        (b"a",),
        (1,),
        None,
        ("a\ud800",),
        ("x" * 2000,),
        ("a",) * 100,
        {"a": 1},
    ],
    "stop_token_ids": [(257,), (-1,), (1.0,), (True,), ("1",), 7, None, (1,) * 2000],
    "ignore_eos": [1, 0, "true", None],
    "logprobs": [-1, 101, 1.0, True, "2", NAN],
}


@pytest.fixture
def engine(fake: ModuleType) -> Iterator[Any]:
    config = from_flat(
        {"kv_cache.block_tokens": 4, "kv_cache.blocks": 10, "scheduler.max_model_len": LIMITS.max_model_len}
    )
    with fake.make_engine(config) as engine:
        yield engine


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param(field, value, id=f"{field}-{index}")
        for field, values in BAD_PARAMS.items()
        for index, value in enumerate(values)
    ],
)
def test_bad_sampling_parameter(field: str, value: Any) -> None:
    bad = replace(SamplingParams(max_tokens=4), **{field: value})
    with pytest.raises(SamplingParamsError) as caught:
        check_params(bad, LIMITS)
    message = str(caught.value)
    assert caught.value.field == field
    assert message.startswith(field)
    assert ("give" in message) or ("go from" in message) or ("needs" in message)
    assert len(message) < 300
    message.encode("utf-8")  # also where the value itself cannot be encoded


def test_good_parameters_pass_and_become_plain_values() -> None:
    given_params = SamplingParams(
        max_tokens=1, temperature=1, top_p=1, min_p=0, repetition_penalty=np.float64(1.2),  # type: ignore[arg-type]
        seed=(1 << 64) - 1, stop=["a", "é"], stop_token_ids=[0, 256], logprobs=0, top_k=1000,  # type: ignore[arg-type]
    )  # fmt: skip
    checked = check_params(given_params, LIMITS)
    assert checked == replace(given_params, stop=("a", "é"), stop_token_ids=(0, 256))
    kinds = [type(v) for v in (checked.temperature, checked.top_p, checked.min_p, checked.repetition_penalty)]
    assert kinds == [float] * 4
    with pytest.raises(SamplingParamsError, match="must be SamplingParams"):
        check_params({"max_tokens": 3}, LIMITS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ([], EmptyPromptError),
        ((), EmptyPromptError),
        ([257], TokenRangeError),
        ([-1], TokenRangeError),
        ([97, 10**30], TokenRangeError),
        ([97, 10**5000], TokenRangeError),
        ([True], TokenRangeError),
        ([97, 1.0], TokenRangeError),
        (["a"], TokenRangeError),
        ([None], TokenRangeError),
        ([NAN], TokenRangeError),
        ([np.int64(5)], TokenRangeError),
        ([[97]], TokenRangeError),
        (b"abc", RequestError),
        (None, RequestError),
        (97, RequestError),
        ({97}, RequestError),
    ],
)
def test_bad_token_ids(prompt: Any, kind: type[RequestError]) -> None:
    with pytest.raises(kind) as caught:
        check_prompt_ids(prompt, LIMITS)
    assert type(caught.value) is kind
    assert caught.value.field == "prompt"


def test_bad_text() -> None:
    with pytest.raises(EmptyPromptError):
        check_text("", LIMITS)
    with pytest.raises(PromptEncodingError, match="lone surrogate at character 2"):
        check_text("ab\ud83d", LIMITS)
    with pytest.raises(PromptTooLongError):
        check_text("a" * (512 * 64 + 1), LIMITS)
    check_text("a\U0001f600", LIMITS)


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "kind", "field"),
    [
        (64, 1, PromptTooLongError, "prompt"),
        (1000, 1, PromptTooLongError, "prompt"),
        (10, 55, PromptTooLongError, "max_tokens"),
        (41, 1, CapacityError, "prompt"),
        (40, 24, None, ""),
        (63, 1, CapacityError, "prompt"),
    ],
)
def test_what_cannot_fit(prompt_len: int, max_tokens: int, kind: Any, field: str) -> None:
    if kind is None:
        check_fit(prompt_len, max_tokens, LIMITS)
        return
    with pytest.raises(kind) as caught:
        check_fit(prompt_len, max_tokens, LIMITS)
    assert caught.value.field == field


def test_bad_requests_never_touch_their_companions(fake: ModuleType, engine: Any) -> None:
    good = SamplingParams(max_tokens=9, ignore_eos=True, temperature=1.0, seed=3)
    prompts: list[Any] = ["abc", "", [97] * 64, [300], "a\ud800", [97] * 41, "hello", [True], "x"]
    params = [replace(good, temperature=NAN) if prompt == "x" else good for prompt in prompts]
    outputs = engine.generate(prompts, params)
    kinds = [type(output.error) for output in outputs]
    assert kinds == [
        type(None), EmptyPromptError, PromptTooLongError, TokenRangeError, PromptEncodingError, CapacityError,
        type(None), TokenRangeError, SamplingParamsError,
    ]  # fmt: skip
    for output, text in ((outputs[0], "abc"), (outputs[6], "hello")):
        assert output.token_ids == fake.reference(list(text.encode()), good, seed=3)[0]
    assert [output.finish_reason for output in outputs].count("error") == 7
    engine.check_integrity()
    assert engine.gauges()["kv_blocks_used"] == 0
    counters = engine.counters()
    assert (counters["requests_rejected"], counters["requests_admitted"]) == (7, 2)
    events = [event for event in engine.drain_events() if event["kind"] == "rejected"]
    assert [event["code"] for event in events] == [
        "empty_prompt", "prompt_too_long", "token_out_of_range", "prompt_encoding", "kv_capacity",
        "token_out_of_range", "sampling_params",
    ]  # fmt: skip


def test_the_first_error_is_raised_on_demand_and_the_others_are_aborted(engine: Any) -> None:
    with pytest.raises(EmptyPromptError):
        engine.generate(["abc", "", "def"], SamplingParams(max_tokens=3), on_error="raise")
    assert not engine.has_work
    assert engine.counters()["requests_aborted"] == 1
    assert engine.generate([]) == []
    with pytest.raises(RequestError, match="on_error"):
        engine.generate(["a"], on_error="ignore")
    with pytest.raises(RequestError, match="2 prompts come with 1 params"):
        engine.generate(["a", "b"], [SamplingParams()])


def test_request_ids(engine: Any) -> None:
    engine.add("abc", SamplingParams(max_tokens=2), request_id="mine")
    with pytest.raises(DuplicateRequestError):
        engine.add("abc", SamplingParams(max_tokens=2), request_id="mine")
    with pytest.raises(UnknownRequestError, match="has not ended"):
        engine.output("mine")
    for bad in ("", 7, None.__class__, "\ud800"):
        with pytest.raises(RequestError, match="request_id"):
            engine.add("abc", SamplingParams(max_tokens=2), request_id=bad)
    while engine.has_work:
        engine.step()
    with pytest.raises(DuplicateRequestError):  # its output has not been taken
        engine.add("abc", SamplingParams(max_tokens=2), request_id="mine")
    assert len(engine.output("mine").token_ids) == 2
    with pytest.raises(UnknownRequestError, match="once"):
        engine.output("mine")
    assert not engine.abort("mine")
    assert not engine.abort("never was")
    engine.add("abc", SamplingParams(max_tokens=2), request_id="mine")


def test_a_closed_engine_refuses_work(engine: Any) -> None:
    engine.add("abc", SamplingParams(max_tokens=9), request_id="a")
    engine.step()
    engine.close()
    engine.close()
    assert engine.output("a").finish_reason == "abort"
    params = SamplingParams(max_tokens=2)
    for call in (engine.step, lambda: engine.add("abc", params), lambda: engine.generate(["abc"], params)):
        with pytest.raises(IntaglioError, match="closed"):
            call()


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.binary(max_size=4),
    st.lists(st.integers(-3, 300), max_size=3), st.tuples(st.text(max_size=3)), st.complex_numbers(),
)  # fmt: skip


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(
    prompt=st.one_of(ANYTHING, st.text(st.characters(), max_size=30)),
    changes=st.dictionaries(st.sampled_from(sorted(BAD_PARAMS)), ANYTHING, max_size=3),
)
def test_anything_at_all_is_admitted_or_refused_with_a_request_error(
    fake: ModuleType, prompt: Any, changes: dict[str, Any]
) -> None:
    config = from_flat({"kv_cache.blocks": 8, "kv_cache.block_tokens": 4, "scheduler.max_model_len": 40})
    with fake.make_engine(config) as engine:
        params = replace(SamplingParams(max_tokens=3), **changes)
        (output,) = engine.generate([prompt], [params])
        counters = engine.counters()
        if output.error is not None:
            refused = output.error
            assert isinstance(refused, RequestError)
            assert refused.field
            assert (counters["requests_rejected"], counters["requests_admitted"]) == (1, 0)
        else:
            assert output.finish_reason in ("stop", "length")
            assert (counters["requests_finished"], counters["requests_admitted"]) == (1, 1)
        assert not engine.has_work
        assert engine.gauges()["kv_blocks_used"] == 0
