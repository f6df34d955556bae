"""A service on a socket: start, ready line, graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TextIO

import uvicorn

from intaglio.config import EngineConfig
from intaglio.errors import ConfigError
from intaglio.serve import head_deadline
from intaglio.serve.app import build
from intaglio.serve.follow import Follower
from intaglio.serve.service import Service

_log = logging.getLogger("intaglio.serve")
# Answers that are complete still have to reach their clients.
_FLUSH_S = 5
_BACKLOG = 2048
# Longer than clients keep an idle connection, so that none sends on one that is being closed.
_KEEP_ALIVE_S = 75


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises ConfigError when the address is not to be had."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"port is {port}; give 1 to 65535, or 0 for a free one", field="port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot use host {host}: {error}; give another --host", field="host") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; give another --port", field="port"
        ) from None
    return bound


class Server:
    """Serves until told to stop. The first SIGTERM or SIGINT (or `stop`) drains, a second one ends at once."""

    def __init__(self, service: Service, bound: socket.socket, *, follow: Path | None = None) -> None:
        """follow: a file whose configuration is served, also when it changes.

        `drained` tells at the end whether every request in flight got to finish.
        """
        self.service = service
        self._follower = None if follow is None else Follower(service, follow)
        self.address: tuple[str, int] = bound.getsockname()[:2]
        self._socket = bound
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self.drained = True
        self._http = _Uvicorn(_configure(service), self.stop)

    def run(self, on_ready: Callable[[], None] | None = None) -> bool:
        """Serve, in this thread, to the end. Returns whether every request in flight got to finish."""
        try:
            asyncio.run(self._serve(on_ready))
        finally:
            self._socket.close()
            self.service.close()
        return self.drained

    def stop(self) -> None:
        """Drain and end; called once more, end now. From any thread or signal handler."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself meanwhile
                self._loop.call_soon_threadsafe(self._stop)

    def swap(self, config: EngineConfig) -> bool:
        """`Service.swap` from another thread; waits for it."""
        if self._loop is None:
            raise ConfigError("the server is not running; start it before a swap")
        return asyncio.run_coroutine_threadsafe(self.service.swap(config), self._loop).result()

    async def _serve(self, on_ready: Callable[[], None] | None) -> None:
        self._loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self._http.serve(sockets=[self._socket]))
        while not self._http.started and not serving.done():
            await asyncio.sleep(0.005)
        if on_ready is not None and self._http.started:
            on_ready()
        following = None if self._follower is None else asyncio.create_task(self._follower.run())
        try:
            await serving
        finally:
            if following is not None:
                following.cancel()

    def _stop(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
            return
        self._http.should_exit = self._http.force_exit = True
        self._draining.cancel()
        self.drained = False

    async def _drain(self) -> None:
        limit = self.service.limits.drain_timeout_s
        _log.info("draining: no new requests, up to %g s for those in flight", limit)
        self.drained = await self.service.drain()
        if not self.drained:
            _log.warning("the drain limit is over; what is left is ended")
            # Ends the engine's side of what is left, so that its clients get a typed error instead of silence.
            await asyncio.to_thread(self.service.close)
        self._http.should_exit = True


class _Uvicorn(uvicorn.Server):
    """uvicorn, except that a signal drains first and is not raised again after a clean end."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_signal = on_signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """A signal arrived."""
        _log.info("%s received", signal.Signals(sig).name)
        self._on_signal()


def _configure(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        build(service),
        http=head_deadline.protocol(service.limits.head_timeout_s, service.metrics),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_FLUSH_S,
    )


def ready_line(server: Server, out: TextIO | None = None) -> None:
    """Print one line of JSON that tells where the server listens and what it serves."""
    host, port = server.address
    line = {
        "ready": True,
        "host": host,
        "port": port,
        "model": server.service.served_name,
        "fingerprint": server.service.current.fingerprint,
    }
    print(json.dumps(line), file=out or sys.stdout, flush=True)
