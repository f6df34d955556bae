"""A change of configuration waits for nobody: not new requests, not the next change, not the requests it cuts off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from intaglio.serve.follow import Follower
from intaglio.serve.limits import ServerLimits

Serve = Callable[..., Any]
LONG = {"prompt": "abc", "temperature": 0, "max_tokens": 100, "ignore_eos": True}
BASE = {"model": "hash", "kv_cache.block_tokens": 4, "kv_cache.blocks": 512}


def write(path: Path, running: int) -> None:
    (path.parent / "next").write_text(json.dumps({**BASE, "scheduler.max_running": running}))
    (path.parent / "next").replace(path)


def test_a_rollback_does_not_wait_for_the_requests_of_what_it_rolls_back(
    serve: Serve, web: ModuleType, tmp_path: Path
) -> None:
    async def go() -> None:
        gate = web.Gate()
        service = serve(gate=gate)
        path = tmp_path / "served.json"
        follower = Follower(service, path)
        async with web.client(service) as http:

            async def send(count: int) -> list[asyncio.Task[Any]]:
                sent = [asyncio.create_task(http.post("/v1/completions", json=LONG)) for _ in range(count)]
                await web.until(lambda: service.current.places.taken == count)
                return sent

            gate.shut()
            engines, answers = [service.current], await send(3)
            for running in (5, 6):  # promoted, and rolled back while the first engine still works
                write(path, running)
                assert await follower.look()
                engines.append(service.current)
                answers += await send(3)
            assert [engine.places.taken for engine in engines] == [3, 3, 3]
            assert service.current.config.scheduler.max_running == 6
            assert not any(engine.engine.fake.closed for engine in engines)
            gate.open()
            replies = await asyncio.gather(*answers)
            assert [reply.status_code for reply in replies] == [200] * 9
            prints = [reply.json()["system_fingerprint"] for reply in replies]
            assert prints == [engine.fingerprint for engine in engines for _ in range(3)]
            await web.until(lambda: engines[0].engine.fake.closed and engines[1].engine.fake.closed)
            assert service.metrics.cut == {} and service.metrics.swaps == {"done": 2}

    asyncio.run(go())


def test_no_more_than_two_engines_finish_beside_the_one_in_service(serve: Serve, web: ModuleType) -> None:
    async def go() -> None:
        gate = web.Gate()
        service = serve(gate=gate)
        async with web.client(service) as http:
            gate.shut()
            answers = []
            for running in (3, 4):
                answers.append(asyncio.create_task(http.post("/v1/completions", json=LONG)))
                await web.until(lambda: service.current.places.taken == 1)
                await service.change_over(web.configure({"scheduler.max_running": running}))
            third = asyncio.create_task(service.change_over(web.configure({"scheduler.max_running": 5})))
            for _ in range(20):
                await asyncio.sleep(0)
            assert service.current.config.scheduler.max_running == 4 and not third.done()
            gate.open()
            assert await (await third)
            assert service.current.config.scheduler.max_running == 5
            assert [answer.status_code for answer in await asyncio.gather(*answers)] == [200, 200]

    asyncio.run(go())


def test_what_a_change_cuts_off_is_told_and_counted(serve: Serve, web: ModuleType) -> None:
    async def go() -> None:
        gate = web.Gate()
        service = serve(gate=gate, limits=ServerLimits(drain_timeout_s=0.02))
        async with web.client(service) as http:
            gate.shut()
            old = service.current
            answers = [asyncio.create_task(http.post("/v1/completions", json=LONG)) for _ in range(4)]
            await web.until(lambda: old.places.taken == 4)
            retirement = await service.change_over(web.configure({"scheduler.max_running": 3}))
            await web.until(lambda: old.driver.stopping)
            gate.open()
            assert not await retirement
            codes = {
                (reply.status_code, reply.json()["error"]["code"]) for reply in await asyncio.gather(*answers)
            }
            assert codes == {(503, "aborted")}
            metrics = (await http.get("/metrics")).text
            assert 'intaglio_requests_cut_total{by="swap"} 4' in metrics
            assert 'intaglio_requests_cut_total{by="shutdown"} 0' in metrics
            assert (await http.post("/v1/completions", json=LONG)).status_code == 200

    asyncio.run(go())
