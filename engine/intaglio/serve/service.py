"""What the routes share: the engine in service, its successor, callers, limits and counts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath
from typing import TypeVar

from starlette.requests import Request

from intaglio.config import EngineConfig
from intaglio.engine import Engine
from intaglio.errors import IntaglioError
from intaglio.serve.api_error import ApiError
from intaglio.serve.deployment import Deployment, EngineFactory
from intaglio.serve.generation import Generation, Order
from intaglio.serve.keys import Caller, KeyRing
from intaglio.serve.limits import ServerLimits
from intaglio.serve.metrics import ServerMetrics

_log = logging.getLogger("intaglio.serve")
_BACKGROUND_THREADS = 2
# Engines that finish their last requests beside the one in service; each holds a model in memory.
_MOST_RETIRING = 2

Result = TypeVar("Result")
Totals = tuple[Counter[str], Counter[str], defaultdict[tuple[str, str], float]]


class Service:
    """One model name, served by one engine at a time. Everything but the constructor runs on one event loop."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        limits: ServerLimits | None = None,
        keys: KeyRing | None = None,
        served_name: str | None = None,
        factory: EngineFactory = Engine,
    ) -> None:
        """Loads the model. served_name: what clients call it (default: the last part of `config.model`)."""
        self.limits = limits or ServerLimits()
        self.keys = keys or KeyRing()
        self.metrics = ServerMetrics()
        self.served_name = served_name or PurePath(config.model).name or config.model
        self.draining = False
        self.started = int(time.time())
        self.http_requests = 0
        self._factory = factory
        self._swapping = asyncio.Lock()
        self._retiring: set[Deployment] = set()
        self._retirements: set[asyncio.Task[bool]] = set()
        self._background = ThreadPoolExecutor(_BACKGROUND_THREADS, thread_name_prefix="intaglio-background")
        # Counts of engines that have been replaced, so that no counter of the server ever falls.
        self._past: Totals = (Counter(), Counter(), defaultdict(float))
        self.current = self._deploy(config)

    def caller(self, request: Request) -> Caller:
        """Who sends this request. Raises ApiError 401."""
        return self.keys.caller(request.headers.get("authorization"))

    def check_serving(self) -> None:
        """Raises ApiError 503 while draining or after the engine failed."""
        self._check_not_draining()
        if self.current.driver.failure:
            raise ApiError(503, "the engine has failed; the server needs a restart", code="engine_failed")

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 for a name that is not the served one."""
        if name is not None and name != self.served_name:
            raise ApiError(
                404,
                f"no model '{name[:100]}' here; this server has '{self.served_name}'",
                code="model_not_found",
                param="model",
            )

    def generation(self, deployment: Deployment, order: Order) -> Generation:
        """A generation on a deployment; to lose nothing in a swap, on the one that is `current` right now."""
        return Generation(deployment, order, self.metrics, timeout_s=self.limits.request_timeout_s)

    async def in_background(self, work: Callable[[], Result]) -> Result:
        """Run work of unknown length apart from the threads that admit requests."""
        return await asyncio.get_running_loop().run_in_executor(self._background, work)

    def totals(self) -> Totals:
        """Engine counters, events by kind and seconds by stage, over all engines so far: they never fall."""
        counters, events, stages = self._past[0].copy(), self._past[1].copy(), self._past[2].copy()
        for deployment in (self.current, *self._retiring):
            _add(deployment, counters, events, stages)
        return counters, events, stages

    async def swap(self, config: EngineConfig) -> bool:
        """`change_over`, and wait for the old engine. Returns whether all of its requests finished."""
        return await (await self.change_over(config))

    async def change_over(self, config: EngineConfig) -> asyncio.Task[bool]:
        """Serve another configuration without losing a request.

        The new engine is loaded beside the old one (both fit in memory for that time), then gets every new
        request while the old one finishes its own, within drain_timeout_s. Returns as soon as new requests go to
        the new engine, so that the next change need not wait for the old one's requests; the task tells whether all
        of those finished. A change waits while _MOST_RETIRING engines still have requests. Raises what the engine
        raises, with the old one still in service, if the new one does not load.
        """
        async with self._swapping:
            while len(self._retirements) >= _MOST_RETIRING:
                await asyncio.wait(self._retirements, return_when=asyncio.FIRST_COMPLETED)
            self._check_not_draining()
            try:
                successor = await asyncio.to_thread(self._deploy, config)
            except IntaglioError:
                self.metrics.swaps["refused"] += 1
                raise
            if self.draining:  # told to stop while loading
                await successor.retire(0)
                self._check_not_draining()
            old, self.current = self.current, successor
            self.metrics.swaps["done"] += 1
            _log.info("configuration %s follows %s", successor.fingerprint, old.fingerprint)
            self._retiring.add(old)
            retirement = asyncio.create_task(self._retire(old))
            self._retirements.add(retirement)
            retirement.add_done_callback(self._retirements.discard)
            return retirement

    async def drain(self) -> bool:
        """Refuse new requests and let those in flight finish. Returns whether all did within the limit."""
        self.draining = True
        deployments = [self.current, *self._retiring]
        waits = [d.places.wait_empty(self.limits.drain_timeout_s) for d in deployments]
        return all(await asyncio.gather(*waits))

    def close(self) -> None:
        """End what is still live, which is counted, and close the engines. May be called again."""
        self.draining = True
        for deployment in (self.current, *self._retiring):
            if not deployment.driver.stopping:
                self._count_cut("shutdown", deployment, deployment.places.taken)
            deployment.driver.close(60.0)
        self._background.shutdown(wait=False, cancel_futures=True)

    def _check_not_draining(self) -> None:
        if self.draining:
            raise ApiError(
                503,
                "the server is shutting down; send to another one",
                code="draining",
                headers={"retry-after": "1", "connection": "close"},
            )

    def _deploy(self, config: EngineConfig) -> Deployment:
        return Deployment(config, self._factory, max_queue=self.limits.max_queue)

    async def _retire(self, old: Deployment) -> bool:
        # Cancelled at the server's end, it leaves the engine among the retiring, which `close` ends.
        cut = await old.retire(self.limits.drain_timeout_s)
        self._retiring.discard(old)
        _add(old, *self._past)
        self._count_cut("swap", old, cut)
        return cut == 0

    def _count_cut(self, by: str, deployment: Deployment, cut: int) -> None:
        if cut:
            self.metrics.cut[by] += cut
            _log.warning("%d requests of configuration %s were ended unfinished", cut, deployment.fingerprint)


def _add(
    deployment: Deployment,
    counters: Counter[str],
    events: Counter[str],
    stages: defaultdict[tuple[str, str], float],
) -> None:
    counters.update(deployment.engine.counters())
    events.update(deployment.driver.event_counts)
    for stage, seconds in deployment.driver.stage_seconds.copy().items():
        stages[stage] += seconds
