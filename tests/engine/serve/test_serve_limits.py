"""Back-pressure, limits of size and time, departures: one client's excess is nobody else's trouble."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any

import httpx

from intaglio.serve.limits import ServerLimits

Serve = Callable[..., Any]
LONG = {"prompt": "abc", "temperature": 0, "max_tokens": 200, "ignore_eos": True}


async def idle(web: ModuleType, service: Any) -> None:
    """Wait until the engine holds nothing, and check that it really holds nothing."""
    engine = service.current.engine
    await web.until(lambda: not engine.has_work and service.current.places.taken == 0)
    engine.check_integrity()
    assert engine.gauges()["kv_blocks_used"] == 0


def test_a_full_queue_refuses_with_retry_after_and_then_serves_on(serve: Serve, web: ModuleType) -> None:
    async def go() -> None:
        gate = web.Gate()
        gate.shut()
        service = serve({"scheduler.max_running": 2}, gate=gate, limits=ServerLimits(max_queue=3))
        async with web.client(service) as http:
            held = [asyncio.create_task(http.post("/v1/completions", json=LONG)) for _ in range(5)]
            await web.until(lambda: service.current.places.taken == 5)
            refused = await http.post("/v1/completions", json=LONG)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "queue_full"
            stream = await http.post("/v1/completions", json={**LONG, "stream": True})
            assert stream.status_code == 429
            assert (await http.get("/health")).status_code == 200
            gate.open()
            answers = await asyncio.gather(*held)
            assert [answer.status_code for answer in answers] == [200] * 5
            assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1
            assert (await http.post("/v1/completions", json=LONG)).status_code == 200
            await idle(web, service)

    asyncio.run(go())


def test_more_prompts_than_there_can_be_places_is_a_mistake_not_a_queue(
    serve: Serve, web: ModuleType
) -> None:
    async def go() -> None:
        service = serve({"scheduler.max_running": 2}, limits=ServerLimits(max_queue=2, max_prompts=8))
        async with web.client(service) as http:
            answers = [
                await http.post("/v1/completions", json={**LONG, "prompt": ["a"] * count})
                for count in (4, 5, 9)
            ]
            assert [answer.status_code for answer in answers] == [200, 400, 400]
            assert answers[1].json()["error"]["param"] == "prompt"

    asyncio.run(go())


def test_one_bad_prompt_of_a_list_refuses_all_and_leaves_nothing(serve: Serve, web: ModuleType) -> None:
    async def go() -> None:
        service = serve()
        async with web.client(service) as http:
            answer = await http.post("/v1/completions", json={**LONG, "prompt": ["a", "b", ""]})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "empty_prompt"
            await idle(web, service)

    asyncio.run(go())


def test_large_and_slow_bodies_are_refused(serve: Serve, web: ModuleType) -> None:
    async def go() -> None:
        limits = ServerLimits(max_body_bytes=1000, body_timeout_s=0.2)
        async with web.client(serve(limits=limits)) as http:
            answer = await http.post("/v1/completions", json={"prompt": "x" * 2000})
            assert answer.status_code == 413

            async def unannounced() -> Any:
                for _ in range(20):
                    yield b"x" * 100

            headers = {"content-type": "application/json"}
            answer = await http.post("/v1/completions", content=unannounced(), headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")

            never = asyncio.Event()

            async def stuck() -> Any:
                yield b'{"prompt": '
                await never.wait()

            answer = await http.post("/v1/completions", content=stuck(), headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (408, "body_timeout")

    asyncio.run(go())


def test_an_answer_that_takes_too_long_ends_with_a_typed_error(serve: Serve, web: ModuleType) -> None:
    async def go() -> None:
        gate = web.Gate()
        gate.shut()
        service = serve(gate=gate, limits=ServerLimits(request_timeout_s=0.2))
        async with web.client(service) as http:
            answer = await http.post("/v1/completions", json=LONG)
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")
            stream = await http.post("/v1/completions", json={**LONG, "stream": True})
            assert stream.status_code == 200
            assert '"request_timeout"' in stream.text
            gate.open()
            await idle(web, service)
            counters = service.current.engine.counters()
            assert counters["requests_aborted"] == 2
            assert counters["tokens_generated"] < 200

    asyncio.run(go())


def test_a_client_that_leaves_ends_its_work(serve: Serve, web: ModuleType) -> None:
    gate = web.Gate()
    service = serve(gate=gate)
    with web.running(service) as (_, url), httpx.Client(base_url=url, timeout=30) as http:
        for fields in ({**LONG, "stream": True}, LONG):
            before = service.current.engine.counters()["requests_aborted"]
            gate.shut()
            leave(url, fields, lambda: web.until(lambda: service.current.engine.has_work))
            asyncio.run(web.until(lambda: service.metrics.disconnects > 0))
            gate.open()
            asyncio.run(idle(web, service))
            assert service.current.engine.counters()["requests_aborted"] == before + 1
            service.metrics.disconnects = 0
        assert http.post("/v1/completions", json=LONG).status_code == 200
        counters = service.current.engine.counters()
        assert counters["blocks_allocated"] == counters["blocks_freed"] > 0


def leave(url: str, fields: dict[str, Any], working: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Send a request, wait until the server works on it, and close the connection."""
    request = httpx.Request("POST", f"{url}/v1/completions", json=fields)
    host, port = url.removeprefix("http://").split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items() if name != "host")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode() + b"\r\n" + request.content)
        asyncio.run(working())


def test_an_error_of_the_engine_is_not_another_requests_error(
    serve: Serve, web: ModuleType, fake: ModuleType
) -> None:
    async def go() -> None:
        service = serve()
        runner = service.current.engine.fake
        async with web.client(service) as http:
            runner.fail = {1}
            failed = await http.post("/v1/completions", json=LONG)
            assert (failed.status_code, failed.json()["error"]["type"]) == (500, "server_error")
            assert (await http.post("/v1/completions", json=LONG)).status_code == 200
            runner.fail = {runner.plans[-1].step + 3}
            stream = await http.post("/v1/completions", json={**LONG, "stream": True})
            assert '"generation_failed"' in stream.text
            assert stream.text.endswith("data: [DONE]\n\n")
            await idle(web, service)

    asyncio.run(go())


def test_an_engine_beyond_repair_is_told_by_health_and_refused_by_requests(
    serve: Serve, web: ModuleType
) -> None:
    async def go() -> None:
        service = serve()
        engine = service.current.engine

        def broken() -> Any:
            raise RuntimeError("broken")

        async with web.client(service) as http:
            engine.step = broken
            answer = await http.post("/v1/completions", json=LONG)
            assert answer.status_code == 503
            health = await http.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "engine_failed")
            answer = await http.post("/v1/completions", json=LONG)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_failed")
            await service.swap(web.configure({"scheduler.max_running": 4}))
            assert (await http.post("/v1/completions", json=LONG)).status_code == 200

    asyncio.run(go())


def test_the_engines_thread_sleeps_while_there_is_nothing_to_do(serve: Serve, web: ModuleType) -> None:
    async def go() -> None:
        service = serve()
        steps = 0
        engine = service.current.engine
        original = engine.step

        def counted() -> Any:
            nonlocal steps
            steps += 1
            return original()

        engine.step = counted
        async with web.client(service) as http:
            await http.post("/v1/completions", json=LONG)
            await idle(web, service)
            before = steps
            for _ in range(50):
                await asyncio.sleep(0.002)
            assert steps == before > 0

    asyncio.run(go())
