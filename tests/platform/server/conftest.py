"""Fixtures for tests of the HTTP client: servers on port 0 that answer what a test tells them to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from counterproof.plan.schema import ServerConfig
from counterproof.run.targets.http.http_target import HttpTarget
from counterproof.run.targets.http.kinds import OpenAiServer
from counterproof.run.targets.http.pool import Address
from intaglio.config import from_flat


class Words:
    """A tokenizer that makes a token of every word; ids decode to words."""

    def encode_text(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(f"t{i}" for i in ids)


class NoFacts:
    """A server that says nothing of itself."""

    def effective(self) -> dict[str, Any]:
        return {}

    def identity(self) -> dict[str, Any]:
        return {}

    def counters(self) -> dict[str, int]:
        return {}


class Script:
    """Answers the n-th request of all connections with the n-th of `answers`, then closes if it says so."""

    def __init__(self, answers: list[tuple[bytes, bool]]) -> None:
        self.requests: list[bytes] = []
        self._answers = list(answers)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._socket.accept()
                link.settimeout(10.0)
                with link, contextlib.suppress(OSError):
                    self._serve(link)

    def _serve(self, link: socket.socket) -> None:
        while self._answers:
            data = b""
            while b"\r\n\r\n" not in data:
                piece = link.recv(65536)
                if not piece:
                    return
                data += piece
            head, _, body = data.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            while len(body) < length:
                body += link.recv(65536)
            self.requests.append(head + b"\r\n\r\n" + body)
            answer, close = self._answers.pop(0)
            link.sendall(answer)
            if close:
                return

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10.0)


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    """`script((answer, close), ...)` starts a server that answers so."""
    made: list[Script] = []

    def make(*answers: tuple[bytes, bool]) -> Script:
        made.append(Script(list(answers)))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def target_of() -> Iterator[Callable[..., HttpTarget]]:
    """`target_of(address, dialect=..., delay_us=...)` connects to a scripted server."""
    made: list[HttpTarget] = []

    def make(address: Address, delay_us: int = 0, **fields: Any) -> HttpTarget:
        server = ServerConfig(**fields)
        made.append(HttpTarget(address, server, "m", {}, Words(), delay_us=delay_us, facts=NoFacts()))
        return made[-1]

    yield make
    for target in made:
        target.close()


@pytest.fixture
def null_target(tmp_path: Path) -> Iterator[Callable[..., HttpTarget]]:
    """`null_target("--delay-s", "0.5")` starts a null server in a process of its own and connects to it."""
    made: list[HttpTarget] = []

    def make(*options: str, delay_us: int = 0, **fields: Any) -> HttpTarget:
        command = [
            "{python}",
            "-m",
            "counterproof.run.targets.http.null_server",
            "--port",
            "{port}",
            *options,
        ]
        folder = tmp_path / f"run{len(made)}"
        folder.mkdir()
        server = ServerConfig(command=command, metrics_path=None, ready_s=60.0, stop_s=10.0, **fields)
        engine = from_flat({"model": "tiny", "inject.step_delay_us": delay_us})
        made.append(OpenAiServer().connect(engine, server, folder))
        return made[-1]

    yield make
    for target in made:
        target.close()
