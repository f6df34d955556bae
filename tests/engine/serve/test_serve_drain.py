"""Ending and changing over without losing what is in flight."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from intaglio.errors import ConfigError
from intaglio.serve.follow import Follower
from intaglio.serve.limits import ServerLimits

Serve = Callable[..., Any]
LONG = {"prompt": "abc", "temperature": 0, "max_tokens": 100, "ignore_eos": True}


def alone(fake: ModuleType) -> str:
    tokens, _ = fake.reference(b"abc", fake.SamplingParams(max_tokens=100, ignore_eos=True))
    return str(fake.decoded([token for token in tokens if token != fake.EOS]))


def test_a_drain_finishes_what_is_in_flight_and_refuses_what_is_new(
    serve: Serve, web: ModuleType, fake: ModuleType
) -> None:
    gate = web.Gate()
    service = serve(gate=gate)
    with (
        web.running(service) as (server, url),
        httpx.Client(base_url=url, timeout=30) as http,
        ThreadPoolExecutor(2) as pool,
    ):
        assert http.get("/health").status_code == 200
        gate.shut()
        whole = pool.submit(httpx.post, f"{url}/v1/completions", json=LONG, timeout=60)
        stream = pool.submit(httpx.post, f"{url}/v1/completions", json={**LONG, "stream": True}, timeout=60)
        asyncio.run(web.until(lambda: service.current.places.taken == 2))
        server.stop()
        asyncio.run(web.until(lambda: service.draining))
        refused = http.post("/v1/completions", json=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert "retry-after" in refused.headers
        health = httpx.get(f"{url}/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        gate.open()
        assert whole.result().json()["choices"][0]["text"] == alone(fake)
        lines = [line for line in stream.result().text.split("\n\n") if line]
        assert lines[-1] == "data: [DONE]"
        texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1]]
        assert "".join(texts) == alone(fake)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
    assert service.current.engine.fake.closed


def test_what_outlasts_the_drain_limit_gets_a_typed_end(serve: Serve, web: ModuleType) -> None:
    gate = web.Gate()
    service = serve(gate=gate, limits=ServerLimits(drain_timeout_s=0.05))
    with web.running(service) as (server, url), ThreadPoolExecutor(2) as pool:
        gate.shut()
        whole = pool.submit(httpx.post, f"{url}/v1/completions", json=LONG, timeout=60)
        stream = pool.submit(httpx.post, f"{url}/v1/completions", json={**LONG, "stream": True}, timeout=60)
        asyncio.run(web.until(lambda: service.current.places.taken == 2))
        server.stop()
        asyncio.run(web.until(lambda: service.current.driver.stopping))
        gate.open()
        answer = whole.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "aborted")
        assert '"aborted"' in stream.result().text
    assert server.drained is False


def test_a_second_signal_ends_at_once(serve: Serve, web: ModuleType) -> None:
    gate = web.Gate()
    service = serve(gate=gate)
    with web.running(service) as (server, url), ThreadPoolExecutor(1) as pool:
        gate.shut()
        held = pool.submit(httpx.post, f"{url}/v1/completions", json={**LONG, "stream": True}, timeout=60)
        asyncio.run(web.until(lambda: service.current.places.taken == 1))
        server.stop()
        asyncio.run(web.until(lambda: service.draining))
        server.stop()
        asyncio.run(web.until(lambda: service.current.driver.stopping))
        gate.open()
        assert isinstance(held.exception(timeout=60), httpx.HTTPError) or '"aborted"' in held.result().text
    assert server.drained is False
    assert service.current.engine.counters()["requests_aborted"] == 1


def test_a_swap_loses_no_request_and_keeps_counting(serve: Serve, web: ModuleType, fake: ModuleType) -> None:
    async def go() -> None:
        gate = web.Gate()
        service = serve(gate=gate)
        async with web.client(service) as http:
            old = service.current
            gate.shut()
            before = [asyncio.create_task(http.post("/v1/completions", json=LONG)) for _ in range(12)]
            await web.until(lambda: old.places.taken == 12)
            swap = asyncio.create_task(service.swap(web.configure({"scheduler.max_running": 3})))
            await web.until(lambda: service.current is not old)
            after = [asyncio.create_task(http.post("/v1/completions", json=LONG)) for _ in range(5)]
            await web.until(lambda: service.current.places.taken == 5)
            assert old.places.taken == 12
            # A request has its place a moment before the engine's thread has admitted it.
            async with asyncio.timeout(30):
                while "intaglio_requests_admitted_total 17" not in (await http.get("/metrics")).text:
                    await asyncio.sleep(0)
            gate.open()
            answers = await asyncio.gather(*before, *after)
            assert await swap
            assert {answer.json()["choices"][0]["text"] for answer in answers} == {alone(fake)}
            prints = [answer.json()["system_fingerprint"] for answer in answers]
            assert prints == [old.fingerprint] * 12 + [service.current.fingerprint] * 5
            assert old.fingerprint != service.current.fingerprint
            assert old.engine.fake.closed
            assert (await http.get("/intaglio/effective")).json()["effective"]["scheduler.max_running"] == 3
            metrics = (await http.get("/metrics")).text
            assert "intaglio_tokens_generated_total 1700" in metrics
            assert 'intaglio_swaps_total{result="done"} 1' in metrics

    asyncio.run(go())


def test_a_chat_that_a_swap_overtakes_uses_the_new_models_template(
    serve: Serve, web: ModuleType, fake: ModuleType
) -> None:
    async def go() -> None:
        service = serve()
        old = service.current
        codec = old.engine.tokenizer
        original, entered, go_on = codec.apply_chat_template, threading.Event(), threading.Event()

        def held(messages: Any) -> Any:
            entered.set()
            assert go_on.wait(60)
            return [0, *original(messages)]

        codec.apply_chat_template = held
        fields = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 8}
        async with web.client(service) as http:
            chat = asyncio.create_task(http.post("/v1/chat/completions", json={**fields, "ignore_eos": True}))
            await asyncio.to_thread(entered.wait, 60)
            assert await service.swap(web.configure({"scheduler.max_running": 3}))
            assert old.engine.fake.closed
            go_on.set()
            answer = await chat
            assert answer.status_code == 200, answer.text
            ids = list(b"<user>hi<assistant>")
            tokens, _ = fake.reference(ids, fake.SamplingParams(max_tokens=8, ignore_eos=True))
            text = fake.decoded([token for token in tokens if token != fake.EOS])
            assert answer.json()["choices"][0]["message"]["content"] == text
            assert answer.json()["system_fingerprint"] == service.current.fingerprint

    asyncio.run(go())


def test_a_swap_that_does_not_load_changes_nothing(serve: Serve, web: ModuleType, fake: ModuleType) -> None:
    async def go() -> None:
        service = serve()
        old = service.current
        make = service._factory

        def refuse(config: Any) -> Any:
            raise ConfigError("no such thing; give another", field="model")

        service._factory = refuse
        async with web.client(service) as http:
            with pytest.raises(ConfigError):
                await service.swap(web.configure({"scheduler.max_running": 3}))
            assert service.current is old
            answer = await http.post("/v1/completions", json=LONG)
            assert answer.json()["choices"][0]["text"] == alone(fake)
            service._factory = make
            assert await service.swap(web.configure({"scheduler.max_running": 3}))
            assert service.metrics.swaps == {"refused": 1, "done": 1}

    asyncio.run(go())


def test_a_server_follows_a_file(serve: Serve, web: ModuleType, tmp_path: Path) -> None:
    async def go() -> None:
        service = serve()
        path = tmp_path / "served.json"
        follower = Follower(service, path)

        def write(text: str) -> None:
            (tmp_path / "next").write_text(text)
            (tmp_path / "next").replace(path)

        base = {"model": "hash", "kv_cache.block_tokens": 4, "kv_cache.blocks": 512}
        async with web.client(service) as http:
            assert not await follower.look()
            write(json.dumps({**base, "scheduler.max_running": 5}))
            assert await follower.look()
            assert service.current.config.scheduler.max_running == 5
            assert not await follower.look()
            for wrong in ("{", "[]", '{"scheduler.max_running": "5"}', '{"no.path": 1}'):
                write(wrong)
                assert not await follower.look()
                assert service.current.config.scheduler.max_running == 5
            assert service.metrics.swaps == {"done": 1, "failed": 4}
            assert (await http.post("/v1/completions", json=LONG)).status_code == 200

    asyncio.run(go())


def test_following_goes_on_after_a_configuration_that_fails_in_an_unforeseen_way(
    serve: Serve, web: ModuleType, tmp_path: Path
) -> None:
    async def go() -> None:
        service = serve()
        path = tmp_path / "served.json"
        follower, make = Follower(service, path), service._factory
        base = {"model": "hash", "kv_cache.block_tokens": 4, "kv_cache.blocks": 512}

        def exhausted(config: Any) -> Any:
            raise MemoryError("no memory for another model")

        async with web.client(service):
            service._factory = exhausted
            path.write_text(json.dumps({**base, "scheduler.max_running": 5}))
            assert not await follower.look()
            assert service.metrics.swaps == {"failed": 1}
            service._factory = make
            path.write_text(json.dumps({**base, "scheduler.max_running": 16}))
            assert await follower.look()
            assert service.current.config.scheduler.max_running == 16

    asyncio.run(go())


def test_half_a_body_at_the_end_of_the_server_gets_a_typed_answer(
    serve: Serve, web: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intaglio.serve.server._FLUSH_S", 1)
    service = serve()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
    with web.running(service) as (server, url):
        address = (httpx.URL(url).host, httpx.URL(url).port)
        with socket.create_connection(address, timeout=30) as half:
            half.sendall(head + b'{"prompt"')
            asyncio.run(web.until(lambda: service.http_requests == 1))
            server.stop()
            answer = b"".join(iter(lambda: half.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 503"), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "draining"
