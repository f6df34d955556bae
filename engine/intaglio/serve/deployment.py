"""One engine in service, with the places for its requests and what identifies its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from intaglio.config import EngineConfig, Scalar
from intaglio.config_identity import fingerprint
from intaglio.engine import Engine
from intaglio.serve.driver import EngineDriver
from intaglio.serve.places import Places

EngineFactory = Callable[[EngineConfig], Engine]


class Deployment:
    """An engine that serves. Made anew for every configuration; a request stays with the one it began on."""

    def __init__(self, config: EngineConfig, factory: EngineFactory, *, max_queue: int) -> None:
        """Loads the model, so call it from a thread. Raises what the engine raises (ConfigError, ModelError)."""
        self.config = config
        self.engine = factory(config)
        self.driver = EngineDriver(self.engine)
        self.places: Places = Places(config.scheduler.max_running, max_queue)
        self.fingerprint: str = fingerprint(config)
        self._effective: dict[str, Scalar] | None = None

    async def effective(self) -> dict[str, Scalar]:
        """What really runs. Computed once, on a thread: it hashes the model's files."""
        if self._effective is None:
            self._effective = await asyncio.to_thread(self.engine.effective_config)
        return self._effective

    async def retire(self, drain_timeout_s: float) -> int:
        """Let requests in flight finish, end what is left, close the engine. Returns how many had to be ended."""
        finished = await self.places.wait_empty(drain_timeout_s)
        cut = 0 if finished else self.places.taken
        await asyncio.to_thread(self.driver.close, 60.0)
        return cut
