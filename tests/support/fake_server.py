"""A service on the stand-in model, and clients for it: in process over ASGI, or over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import httpx

from intaglio.config import EngineConfig, from_flat
from intaglio.errors import PromptEncodingError
from intaglio.serve.app import build
from intaglio.serve.server import Server, bind
from intaglio.serve.service import Service

DEADLINE_S = 60.0
MODEL = "hash"


class Gate:
    """Holds the stand-in model inside a step until it is opened, so that a test can act meanwhile."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()
        self._open.set()

    def __call__(self, _plan: object) -> None:
        self.entered.release()
        if not self._open.wait(DEADLINE_S):
            raise TimeoutError("the gate was left closed")

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def wait_entered(self) -> None:
        """Wait until a step has begun after the last call."""
        if not self.entered.acquire(timeout=DEADLINE_S):
            raise TimeoutError("no step began")


def factory(fake: ModuleType, gate: Gate | None = None) -> Callable[[EngineConfig], Any]:
    """An engine factory for Service: engines on a HashRunner, with what a server needs of a tokenizer."""

    class Codec(fake.ByteCodec):  # type: ignore[name-defined, misc]
        def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
            return list(super().encode(text))

        def token_bytes(self, token_id: int) -> bytes:
            return b"" if token_id == fake.EOS else bytes([token_id])

        def apply_chat_template(self, messages: list[dict[str, str]]) -> list[int]:
            if not messages:
                raise PromptEncodingError("there are no messages; give at least one", field="messages")
            text = "".join(f"<{m['role']}>{m['content']}" for m in messages)
            return list(self.encode(text + "<assistant>"))

    def make(config: EngineConfig) -> Any:
        runner = fake.HashRunner(config.kv_cache.block_tokens, max_positions=512)
        runner.during = gate
        engine = fake.make_engine(config, runner)
        engine._loaded.codec.__class__ = Codec
        return engine

    return make


def configure(values: Mapping[str, Any] | None = None) -> EngineConfig:
    """A small configuration of the stand-in model."""
    base = {"model": MODEL, "kv_cache.block_tokens": 4, "kv_cache.blocks": 512, "scheduler.max_running": 8}
    return from_flat({**base, **(values or {})})


@contextlib.asynccontextmanager
async def client(service: Service, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application in this process; the service is closed at the end."""
    transport = httpx.ASGITransport(build(service), raise_app_exceptions=False)
    try:
        async with (
            asyncio.timeout(DEADLINE_S),
            httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as http,
        ):
            yield http
    finally:
        await asyncio.to_thread(service.close)


@contextlib.contextmanager
def running(service: Service) -> Iterator[tuple[Server, str]]:
    """A server on a free port in a thread, and its URL; drained and ended afterwards."""
    server = Server(service, bind("127.0.0.1", 0))
    ready = threading.Event()
    thread = threading.Thread(target=server.run, args=(ready.set,), daemon=True)
    thread.start()
    if not ready.wait(DEADLINE_S):
        raise TimeoutError("the server did not start")
    try:
        yield server, f"http://127.0.0.1:{server.address[1]}"
    finally:
        server.stop()
        thread.join(DEADLINE_S)
        if thread.is_alive():
            raise TimeoutError("the server did not end")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other threads bring about."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.002)
