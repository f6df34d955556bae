"""Whatever is sent, the answer is a typed error of the 4xx kind, and the next good request is served as if alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intaglio.serve.app import build
from intaglio.serve.limits import ServerLimits

Serve = Callable[..., Any]
ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/caches", "/v1/caches/x")
GOOD = {"prompt": "abc", "temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def site(fake: ModuleType, web: ModuleType) -> Iterator[SimpleNamespace]:
    """One server for the whole module: `send(method, path, content, headers)`, and its service."""
    from intaglio.serve.service import Service

    service = Service(web.configure(), factory=web.factory(fake), limits=ServerLimits(max_body_bytes=100_000))
    loop = asyncio.new_event_loop()
    transport = httpx.ASGITransport(build(service), raise_app_exceptions=False)
    http = httpx.AsyncClient(transport=transport, base_url="http://test")

    def send(method: str, path: str, content: bytes = b"", **headers: str) -> httpx.Response:
        headers = {"content-type": "application/json", **headers}
        call = http.request(method, path, content=content, headers=headers)
        return loop.run_until_complete(asyncio.wait_for(call, web.DEADLINE_S))

    yield SimpleNamespace(send=send, service=service)
    loop.run_until_complete(http.aclose())
    service.close()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def check_refused(answer: httpx.Response) -> dict[str, Any]:
    """A typed error in OpenAI's shape; returns it."""
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["code"]
    return error


def check_healthy(site: SimpleNamespace, fake: ModuleType) -> None:
    assert site.send("GET", "/health").status_code == 200
    answer = site.send("POST", "/v1/completions", json.dumps(GOOD).encode())
    assert answer.status_code == 200
    tokens, _ = fake.reference(b"abc", fake.SamplingParams(max_tokens=8, ignore_eos=True))
    assert answer.json()["choices"][0]["text"] == fake.decoded([t for t in tokens if t != fake.EOS])
    assert site.service.current.engine.gauges()["kv_blocks_used"] == 0
    assert site.service.current.places.taken == 0


BODIES = {
    "empty": b"",
    "not JSON": b"{prompt: abc}",
    "no object": b'["prompt"]',
    "no UTF-8": b'{"prompt": "\xff"}',
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "infinity": b'{"prompt": "a", "temperature": -Infinity}',
    "an infinity of digits": b'{"prompt": "a", "temperature": 1e999}',
    "a huge number": b'{"prompt": "a", "max_tokens": 1' + b"0" * 3000 + b"}",
    "a number beyond Python": b'{"prompt": "a", "max_tokens": 1' + b"0" * 9000 + b"}",
    "deep lists": b'{"prompt": ' + b"[" * 40_000 + b"]" * 40_000 + b"}",
    "deep objects": b'{"a": ' * 15_000 + b"1" + b"}" * 15_000,
    "a lone surrogate": b'{"prompt": "a\\ud800"}',
    "a lone surrogate as a name": b'{"\\udfff": "a"}',
    "a name twice": b'{"prompt": "a", "prompt": "b"}',
    "a truncated body": b'{"prompt": "a", "max_tok',
    "too large": b'{"prompt": "' + b"x" * 100_000 + b'"}',
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("route", ROUTES)
def test_bodies_that_are_no_requests(site: SimpleNamespace, fake: ModuleType, route: str, name: str) -> None:
    check_refused(site.send("POST", route, BODIES[name]))
    check_healthy(site, fake)


FIELDS = {
    "prompt": [
        "",
        [],
        [[]],
        [""],
        None,
        3,
        True,
        [1.5],
        ["a", 1],
        [[1], "a"],
        [-1],
        [257],
        [10**30],
        [[True]],
        {"a": 1},
    ],
    "max_tokens": [0, -1, 1.0, "8", True, 10**6, 2**70, [8]],
    "temperature": [-1, "0", True, 1e-9, 1e9, [0], 10**400],
    "top_p": [0, -0.1, 1.1, "1"],
    "top_k": [-1, 1.5, 2**40],
    "min_p": [1, -0.1],
    "repetition_penalty": [0, -1, 1e9],
    "seed": [-1, 2**64, 0.5, "1"],
    "stop": ["", [""], 3, ["a"] * 65, [3], "x" * 2000],
    "stop_token_ids": [[300], [-1], "a", [1.0]],
    "logprobs": [-1, 101, True, 1.5],
    "n": [2, 0, True],
    "best_of": [2],
    "echo": [True, 1],
    "suffix": ["x"],
    "logit_bias": [{"5": 1}],
    "presence_penalty": [0.5],
    "frequency_penalty": [-1],
    "store": [True],
    "stream": ["true", 1],
    "stream_options": [{"include_usage": True}, {"include": 1}, True],
    "model": ["other", 3],
    "context": ["any", 3],
    "tenant": ["other"],
    "no_such_field": [1],
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_value_names_its_field(site: SimpleNamespace, fake: ModuleType, name: str) -> None:
    for value in FIELDS[name]:
        body = json.dumps({**GOOD, name: value}).encode()
        error = check_refused(site.send("POST", "/v1/completions", body))
        assert error["param"] == name, (value, error)
    check_healthy(site, fake)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("messages", {}),
        ("messages", {"messages": []}),
        ("messages", {"messages": [{"role": "user"}]}),
        ("messages", {"messages": [{"role": "tool", "content": "a"}]}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}),
        ("messages", {"messages": [{"role": "user", "content": None}]}),
        ("messages", {"messages": "a"}),
        ("tools", {"tools": [{"type": "function"}]}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("max_completion_tokens", {"max_tokens": 3, "max_completion_tokens": 3}),
        ("max_tokens", {"max_completion_tokens": 10**7}),
    ],
)
def test_wrong_chats_name_their_field(site: SimpleNamespace, param: str, fields: dict[str, Any]) -> None:
    good = {"messages": [{"role": "user", "content": "a"}]} if param != "messages" else {}
    error = check_refused(site.send("POST", "/v1/chat/completions", json.dumps({**good, **fields}).encode()))
    assert error["param"] == param


def test_neutral_values_of_what_is_not_supported_are_accepted(site: SimpleNamespace) -> None:
    neutral = {
        "n": 1,
        "best_of": 1,
        "echo": False,
        "suffix": None,
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "store": False,
        "user": "someone",
        "stop": None,
    }
    answer = site.send("POST", "/v1/completions", json.dumps({**GOOD, **neutral}).encode())
    assert answer.status_code == 200, answer.text


def test_unknown_paths_methods_and_media_types(site: SimpleNamespace) -> None:
    assert check_refused(site.send("GET", "/v1/none"))["code"] == "not_found"
    assert check_refused(site.send("PUT", "/v1/completions"))["code"] == "method_not_allowed"
    answer = site.send("POST", "/v1/completions", b"prompt=a", **{"content-type": "text/plain"})
    assert (answer.status_code, check_refused(answer)["code"]) == (415, "unsupported_media_type")
    assert check_refused(site.send("GET", "/v1/models/other"))["code"] == "model_not_found"


TEXTS = st.text(st.characters(exclude_categories=[]), max_size=20)
NUMBERS = st.integers() | st.floats() | st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, 10**40])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
NAMES = (
    st.sampled_from([*FIELDS, "messages", "top_logprobs", "tools", "role", "content", "ttl_s", "name"])
    | TEXTS
)
LOOKALIKES = {
    "prompt": st.lists(st.integers(-1, 260), max_size=30) | TEXTS,
    "max_tokens": st.integers(-1, 600),
}


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    route=st.sampled_from(ROUTES),
    fields=st.dictionaries(NAMES, VALUES, max_size=6),
    likely=st.fixed_dictionaries({}, optional=LOOKALIKES),
)
def test_arbitrary_objects(
    site: SimpleNamespace, fake: ModuleType, route: str, fields: dict[str, Any], likely: dict[str, Any]
) -> None:
    answer = site.send("POST", route, json.dumps({**fields, **likely}).encode("utf-8", "surrogatepass"))
    if answer.status_code != 200:
        check_refused(answer)
    check_healthy(site, fake)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(route=st.sampled_from(ROUTES), content=st.binary(max_size=200))
def test_arbitrary_bytes(site: SimpleNamespace, route: str, content: bytes) -> None:
    check_refused(site.send("POST", route, content))
