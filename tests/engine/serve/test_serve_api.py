"""The HTTP API over the stand-in model: what an answer holds, whole and streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from intaglio.intake.request import SamplingParams

Serve = Callable[..., Any]
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def documents(text: str) -> list[dict[str, Any]]:
    """The documents of a server-sent stream, which must end in [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def expected(fake: ModuleType, prompt: str | list[int], **values: Any) -> tuple[str, int, str]:
    """Text, token count and finish reason of a greedy request alone."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    params = SamplingParams(**{"max_tokens": 12, "ignore_eos": True, **values})
    tokens, reason = fake.reference(ids, params)
    text = fake.decoded([token for token in tokens if token != fake.EOS])
    for stop in params.stop:
        text = text.split(stop)[0]
    return text, len(tokens), reason


def test_a_completion_is_the_request_alone_with_its_counts(
    serve: Serve, web: ModuleType, fake: ModuleType
) -> None:
    async def go() -> None:
        async with web.client(serve()) as http:
            answer = await http.post("/v1/completions", json={"prompt": "abc", "model": "hash", **GREEDY})
            assert answer.status_code == 200, answer.text
            body = answer.json()
            text, count, reason = expected(fake, "abc")
            assert body["object"] == "text_completion"
            assert body["choices"] == [{"index": 0, "text": text, "finish_reason": reason, "logprobs": None}]
            assert body["usage"] == {
                "prompt_tokens": 3,
                "completion_tokens": count,
                "total_tokens": 3 + count,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            assert answer.headers["x-intaglio-config"] == body["system_fingerprint"]

    asyncio.run(go())


@pytest.mark.parametrize(
    ("prompt", "alone"),
    [
        ([97, 98, 99], [[97, 98, 99]]),
        (["abc", "d"], ["abc", "d"]),
        ([[97], [98, 99], [100]], [[97], [98, 99], [100]]),
    ],
)
def test_prompts_may_be_ids_and_lists(
    serve: Serve, web: ModuleType, fake: ModuleType, prompt: Any, alone: list[Any]
) -> None:
    async def go() -> None:
        async with web.client(serve()) as http:
            for stream in (False, True):
                fields = {"prompt": prompt, "stream": stream, **GREEDY}
                answer = await http.post("/v1/completions", json=fields)
                assert answer.status_code == 200, answer.text
                texts = [""] * len(alone)
                for document in documents(answer.text) if stream else [answer.json()]:
                    for choice in document["choices"]:
                        texts[choice["index"]] += choice["text"]
                assert texts == [expected(fake, own)[0] for own in alone]

    asyncio.run(go())


def test_a_stream_gives_the_same_text_piece_by_piece(serve: Serve, web: ModuleType, fake: ModuleType) -> None:
    async def go() -> None:
        async with web.client(serve()) as http:
            fields = {"prompt": "abc", "stream": True, "stream_options": {"include_usage": True}, **GREEDY}
            answer = await http.post("/v1/completions", json={**fields, "return_token_ids": True})
            assert answer.headers["content-type"].startswith("text/event-stream")
            *chunks, last = documents(answer.text)
            text, count, reason = expected(fake, "abc")
            assert len(chunks) == count
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
            ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
            assert fake.decoded([token for token in ids if token != fake.EOS]) == text
            reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
            assert reasons == [None] * (count - 1) + [reason]
            assert all(chunk["usage"] is None for chunk in chunks)
            assert (last["choices"], last["usage"]["completion_tokens"]) == ([], count)

    asyncio.run(go())


def test_chat_puts_messages_into_the_template_and_joins_text_parts(
    serve: Serve, web: ModuleType, fake: ModuleType
) -> None:
    async def go() -> None:
        parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]
        text, count, reason = expected(fake, "<system>s<user>hi<assistant>")
        async with web.client(serve()) as http:
            answer = await http.post("/v1/chat/completions", json={"messages": messages, **GREEDY})
            choice = answer.json()["choices"][0]
            assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
            assert choice["finish_reason"] == reason
            fields = {"messages": messages, "stream": True, **GREEDY}
            streamed = documents((await http.post("/v1/chat/completions", json=fields)).text)
            assert {chunk["object"] for chunk in streamed} == {"chat.completion.chunk"}
            deltas = [chunk["choices"][0]["delta"] for chunk in streamed]
            assert deltas[0] == {"role": "assistant", "content": ""}
            assert "".join(delta.get("content", "") for delta in deltas) == text
            assert len(deltas) <= count + 1

    asyncio.run(go())


def test_a_chat_without_a_limit_uses_what_the_context_leaves(serve: Serve, web: ModuleType) -> None:
    async def go() -> None:
        async with web.client(serve({"scheduler.max_model_len": 64})) as http:
            messages = [{"role": "user", "content": "x" * 20}]
            fields = {"messages": messages, "temperature": 0, "ignore_eos": True}
            usage = (await http.post("/v1/chat/completions", json=fields)).json()["usage"]
            assert usage["prompt_tokens"] + usage["completion_tokens"] == 64

    asyncio.run(go())


def test_stop_seed_and_log_probabilities_reach_the_engine(
    serve: Serve, web: ModuleType, fake: ModuleType
) -> None:
    async def go() -> None:
        async with web.client(serve()) as http:
            whole, _, _ = expected(fake, "abc", max_tokens=40)
            stop = whole[10:12]
            fields = {"prompt": "abc", **GREEDY, "max_tokens": 40, "stop": stop, "logprobs": 0}
            choice = (await http.post("/v1/completions", json=fields)).json()["choices"][0]
            text, count, _ = expected(fake, "abc", max_tokens=40, stop=(stop,))
            assert (choice["text"], choice["finish_reason"]) == (text, "stop")
            assert choice["logprobs"]["token_logprobs"] == [-0.5] * count
            assert len(choice["logprobs"]["tokens"]) == count
            seeded = {"prompt": "abc", "max_tokens": 20, "ignore_eos": True, "temperature": 0.8}
            first, same, other = [
                (await http.post("/v1/completions", json={**seeded, "seed": seed})).json()["choices"][0][
                    "text"
                ]
                for seed in (1, 1, 2)
            ]
            assert first == same != other

    asyncio.run(go())


def test_models_health_and_effective_configuration(serve: Serve, web: ModuleType) -> None:
    async def go() -> None:
        service = serve()
        async with web.client(service) as http:
            models = (await http.get("/v1/models")).json()["data"]
            assert [model["id"] for model in models] == ["hash"]
            assert (await http.get("/v1/models/hash")).json() == models[0]
            assert (await http.get("/health")).json() == {"live": True, "ready": True, "status": "ok"}
            await http.post("/v1/completions", json={"prompt": "abc", **GREEDY})
            told = (await http.get("/intaglio/effective")).json()
            assert told["effective"]["kv_cache.blocks"] == 512
            assert told["counters"]["tokens_generated"] == 12
            assert told["gauges"]["kv_blocks_used"] == 0
            document = (await http.get("/openapi.json")).json()
            body = document["paths"]["/v1/completions"]["post"]["requestBody"]
            assert "prompt" in body["content"]["application/json"]["schema"]["properties"]

    asyncio.run(go())


def test_metrics_are_prometheus_text_and_count_the_work(serve: Serve, web: ModuleType) -> None:
    async def go() -> None:
        async with web.client(serve()) as http:
            for _ in range(3):
                await http.post("/v1/completions", json={"prompt": "abc", **GREEDY})
            await http.post("/v1/completions", json={"prompt": ""})
            answer = await http.get("/metrics")
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
            values = dict(line.rsplit(" ", 1) for line in lines)
            assert len(values) == len(lines)
            assert values["intaglio_tokens_generated_total"] == "36"
            assert values["intaglio_requests_rejected_total"] == "1"
            route = 'route="POST /v1/completions"'
            assert values[f'intaglio_http_responses_total{{{route},status="200"}}'] == "3"
            assert values[f'intaglio_http_responses_total{{{route},status="400"}}'] == "1"
            assert values["intaglio_ttft_seconds_count"] == "3"
            assert values['intaglio_inter_token_seconds_bucket{le="+Inf"}'] == "33"
            assert float(values['intaglio_stage_seconds_total{stage="compute",phase="decode"}']) > 0

    asyncio.run(go())
