"""The two kinds of servers: intaglio's own, and any that speaks OpenAI's API."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from counterproof.errors import ExecutionError, InputError, SetupError
from counterproof.plan.schema import ServerConfig
from counterproof.run.targets.documents import Documents
from counterproof.run.targets.http.caches import ServerKeeper
from counterproof.run.targets.http.facts import ServerFacts
from counterproof.run.targets.http.http_target import HttpTarget
from counterproof.run.targets.http.pool import Address
from counterproof.run.targets.http.server_process import LOG, ServerProcess, assignments, fill, free_port
from counterproof.run.targets.http.watch import SERVER_SAMPLES
from counterproof.run.targets.intaglio_local import IntaglioLocal, IntaglioPlanner
from counterproof.run.targets.protocol import Planner, Target
from intaglio.config import EngineConfig, flatten
from intaglio.errors import ModelError
from intaglio.models import catalogue

LOOPBACK = "127.0.0.1"
WATCHER_S = 30.0


class OpenAiServer:
    """Any server with OpenAI's API. `engine.model` names the folder of the same model, for its tokenizer."""

    def planner(self, engine: EngineConfig) -> Planner:
        """Raises SetupError when the model's folder is not there."""
        return IntaglioPlanner(engine)

    def start(self, engine: EngineConfig) -> Target:
        """Raises InputError: without a server there is nothing to start."""
        raise InputError(
            f"the target openai cannot run {engine.model} in this process",
            details=["set study.equivalence_requests=0: a server shows no logits to compare"],
        )

    def connect(self, engine: EngineConfig, server: ServerConfig, folder: Path) -> HttpTarget:
        """Start `server.command`, or take `server.base_url` as it is."""
        if server.base_url is None and not server.command:
            raise InputError("the target openai needs server.base_url or server.command")
        # A foreign server cannot be slowed; the known delay is injected where its chunks arrive.
        delay_us = engine.inject.step_delay_us
        return _connect(engine, server, folder, server.command, announced=False, delay_us=delay_us)


class IntaglioHttp(IntaglioLocal):
    """intaglio's own server, started with the engine's configuration; bitwise checks run in-process."""

    def connect(self, engine: EngineConfig, server: ServerConfig, folder: Path) -> HttpTarget:
        """Start `intaglio serve`, unless `server.base_url` names one that runs."""
        own = replace(server, effective_path=server.effective_path or "/intaglio/effective")
        command = server.command or serve_command(engine)
        return _connect(engine, own, folder, command, announced=True, delay_us=0)


def serve_command(engine: EngineConfig) -> list[str]:
    """`intaglio serve` with every leaf that is not the default; the port is the server's choice."""
    plain = flatten(EngineConfig())
    given = [f"{path}={_text(value)}" for path, value in flatten(engine).items() if value != plain[path]]
    return ["{python}", "-m", "intaglio", "serve", "--port", "0", "--ready-json", *given]


def _text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _connect(
    engine: EngineConfig,
    server: ServerConfig,
    folder: Path,
    command: Sequence[str],
    *,
    announced: bool,
    delay_us: int,
) -> HttpTarget:
    key = os.environ.get(server.key_variable or "", "")
    if server.key_variable and not key:
        raise SetupError(f"server.key_variable names {server.key_variable}, which is not set")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    process: ServerProcess | None = None
    with contextlib.ExitStack() as undo:
        if server.base_url is None:
            address, process = _started(
                engine, replace(server, command=list(command)), folder, announced, undo
            )
            deadline = time.monotonic() + server.ready_s
            process.await_health(address, server.health_path, headers, deadline)
            ready_ns = time.perf_counter_ns()
            undo.enter_context(_watched(process.pid, folder, address, server))
        else:
            address, ready_ns = address_of(server.base_url), time.perf_counter_ns()
        facts = ServerFacts(address, headers, server)
        model = facts.model()
        # Only intaglio's own server tells what it runs, and only it keeps documents; what it says decides.
        effective = facts.effective() if engine.context_cache.enabled and server.effective_path else {}
        documents: Documents | None = None
        if effective.get("context_cache.enabled") is True:
            keeper = ServerKeeper(address, headers, model, server.ready_s)
            documents = Documents(keeper, int(effective["kv_cache.block_tokens"]))
        target = HttpTarget(
            address,
            server,
            model,
            headers,
            _Codec(engine),
            delay_us=delay_us,
            facts=facts,
            documents=documents,
        )
        target.ready_ns = ready_ns
        target.on_close(undo.pop_all().close)
    return target


def _started(
    engine: EngineConfig, server: ServerConfig, folder: Path, announced: bool, undo: contextlib.ExitStack
) -> tuple[Address, ServerProcess]:
    port = free_port()
    values = {"port": port, "host": LOOPBACK, "python": sys.executable, "model_folder": _folder(engine)}
    command = fill(server.command, values)
    environment = {**os.environ, **assignments(server.variables)}
    process = ServerProcess(command, environment, folder / LOG)
    undo.callback(process.stop, server.stop_s)
    if announced and not any("{port}" in part for part in server.command):
        port = process.announced_port(time.monotonic() + server.ready_s)
    return Address(LOOPBACK, port), process


@contextlib.contextmanager
def _watched(pid: int, folder: Path, address: Address, server: ServerConfig) -> Iterator[None]:
    where = {
        "name": address.name,
        "port": address.port,
        "tls": address.tls,
        "metrics_path": server.metrics_path,
        "key_variable": server.key_variable,
    }
    command = [sys.executable, "-P", "-m", "counterproof.run.targets.http.watch", str(pid)]
    command += [str(folder / SERVER_SAMPLES), str(os.getpid()), json.dumps(where)]
    watcher = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        _await_first_sample(watcher, folder / SERVER_SAMPLES)
        yield
    finally:
        watcher.kill()
        watcher.wait()


def _await_first_sample(watcher: subprocess.Popen[bytes], samples: Path) -> None:
    """A short run would be over before its watcher had begun. Raises ExecutionError."""
    deadline = time.monotonic() + WATCHER_S
    while not (samples.is_file() and samples.stat().st_size):
        if watcher.poll() is not None or time.monotonic() > deadline:
            raise ExecutionError("the server's watcher did not begin; the server's memory would be unknown")
        time.sleep(0.01)


def address_of(base_url: str) -> Address:
    """Host and port of `http://host:port`. Raises InputError."""
    parts = urllib.parse.urlsplit(base_url)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or parts.path.strip("/"):
        raise InputError(
            f"server.base_url '{base_url}' is not of the form http://host:port",
            details=["leave the path out: /v1/... is put behind it"],
        )
    return Address(parts.hostname, port, parts.scheme == "https")


def _folder(engine: EngineConfig) -> Path:
    try:
        return catalogue.resolve(engine.model)
    except ModelError as error:
        raise SetupError(str(error)) from error


class _Codec:
    """The model's own tokenizer, loaded from its folder."""

    def __init__(self, engine: EngineConfig) -> None:
        from intaglio.intake.tokenizer import Tokenizer

        try:
            tokenizer = Tokenizer(_folder(engine))
        except ModelError as error:
            raise SetupError(str(error)) from error
        self._encode: Callable[..., list[int]] = tokenizer.encode
        self._decode: Callable[[Sequence[int]], str] = tokenizer.decode

    def encode_text(self, text: str) -> list[int]:
        """Token ids of an answer, nothing put before it."""
        return self._encode(text, add_bos=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a prompt; special tokens are left out, since the server puts its own."""
        return self._decode(ids)
