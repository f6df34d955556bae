"""This machine's roofs: memory, arithmetic, loopback and disk, measured once and kept in the store.

`roofline.json`: {"schema", "measured_utc", "machine_sha256", "rates": {...}}. Memory and arithmetic are measured by
the engine in a process of its own; loopback and disk here. A plan copies the rates if the machine is still the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counterproof.errors import CounterproofError, SetupError
from counterproof.record import atomic, canonical, machine
from counterproof.record.journal import now_utc
from counterproof.record.store import Store
from counterproof.run.child_env import child_environment
from intaglio.config import EngineConfig

SCHEMA = "counterproof-roofline/1"
FILE = "roofline.json"
ENGINE_DEADLINE_S = 120.0
_SOCKET_DEADLINE_S = 20.0
_LOOPBACK_BYTES = 256 << 20
_CHUNK = 1 << 20
_ROUND_TRIPS = 500
_DISK_BYTES = 64 << 20
_SYNCS = 20
_MACHINE = (
    "os.kernel",
    "cpu.model",
    "cpu.microcode",
    "cpu.logical",
    "cpu.affinity",
    "cpu.quota",
    "memory.total_bytes",
)


def measure(store: Store, engine: EngineConfig, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything (about 15 s), keep the best of this and of earlier times, and return it.

    A roof is what is possible, and a machine may be slowed down while it is measured (a virtual one whose cores are
    shared may run at half its speed for minutes), so that each rate only ever rises. Raises SetupError.
    """
    tell("memory and matrix products")
    rates = engine_rates(engine)
    tell("loopback")
    rates |= loopback_rates()
    tell("disk")
    store.create()
    rates |= disk_rates(store.root)
    before = known(store)
    if before is not None and before["rates"].get("device") == rates["device"]:
        rates = _best(before["rates"], rates)
    found = {
        "schema": SCHEMA,
        "measured_utc": now_utc(),
        "machine_sha256": machine_sha256(),
        "rates": rates,
    }
    atomic.write_json(store.root / FILE, found)
    return found


def _best(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Per rate the better one: more a second, fewer us or ms. Threads and device are the present ones."""
    result = dict(now)
    for name, value in before.items():
        if isinstance(value, dict):
            result[name] = {k: max(v, now.get(name, {}).get(k, v)) for k, v in value.items()}
        elif name.endswith("_s"):
            result[name] = max(value, now.get(name, value))
        elif name.endswith(("_us", "_ms")):
            result[name] = min(value, now.get(name, value))
    return result


def known(store: Store) -> dict[str, Any] | None:
    """What was measured on this very machine, or None."""
    path = store.root / FILE
    if not path.is_file():
        return None
    try:
        found = canonical.read_json(path)
    except CounterproofError:
        return None
    same = isinstance(found, dict) and found.get("schema") == SCHEMA
    return found if same and found.get("machine_sha256") == machine_sha256() else None


def machine_sha256() -> str:
    """What must be the same for roofs to hold: processor, cores, quota, memory, kernel, GPUs."""
    identity = machine.identity()
    fields = {name: identity[name] for name in _MACHINE}
    return canonical.sha256_json({**fields, **machine.gpu_identity()})


def engine_rates(engine: EngineConfig) -> dict[str, Any]:
    """Memory and arithmetic as the engine's process measures them. Raises SetupError."""
    options = [f"device={engine.device}", f"threads.wait_policy={engine.threads.wait_policy}"]
    if engine.threads.count is not None:
        options.append(f"threads.count={engine.threads.count}")
    command = [sys.executable, "-m", "intaglio", "roofline", "--json", *options]
    try:
        done = subprocess.run(
            command,
            env=child_environment(engine.threads),
            capture_output=True,
            text=True,
            timeout=ENGINE_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SetupError(f"the engine did not measure its roofs within {ENGINE_DEADLINE_S:.0f} s") from None
    if done.returncode != 0:
        raise SetupError(f"the engine could not measure its roofs: {done.stderr.strip()[-400:]}")
    rates: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return rates


def loopback_rates() -> dict[str, float]:
    """Bytes a second through a TCP connection to this machine, and the median round trip of one byte in us."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_SOCKET_DEADLINE_S)
        peer = threading.Thread(target=_answer, args=(server,), daemon=True)
        peer.start()
        with socket.create_connection(server.getsockname(), timeout=_SOCKET_DEADLINE_S) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = []
            for _ in range(_ROUND_TRIPS):
                began = time.perf_counter_ns()
                client.sendall(b"x")
                client.recv(1)
                trips.append((time.perf_counter_ns() - began) / 1e3)
            block = bytes(_CHUNK)
            began_s = time.perf_counter()
            for _ in range(_LOOPBACK_BYTES // _CHUNK):
                client.sendall(block)
            client.recv(1)
            seconds = time.perf_counter() - began_s
        peer.join(_SOCKET_DEADLINE_S)
    return {
        "loopback_bytes_s": _LOOPBACK_BYTES / seconds,
        "loopback_round_trip_us": sorted(trips)[len(trips) // 2],
    }


def _answer(server: socket.socket) -> None:
    """Echo the round trips, then take the bulk and confirm its last byte. Ends with the connection."""
    with contextlib.suppress(OSError):
        connection, _ = server.accept()
        with connection:
            connection.settimeout(_SOCKET_DEADLINE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(_ROUND_TRIPS):
                connection.sendall(connection.recv(1))
            buffer, left = bytearray(_CHUNK), _LOOPBACK_BYTES
            while left:
                got = connection.recv_into(buffer)
                if not got:
                    return
                left -= got
            connection.sendall(b"x")


def disk_rates(folder: Path) -> dict[str, float]:
    """Bytes a second written and synced below `folder`, and the median time of a small synced append in ms."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".roofline-") as file:
        block = os.urandom(_CHUNK)
        began = time.perf_counter()
        for _ in range(_DISK_BYTES // _CHUNK):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        seconds = time.perf_counter() - began
        syncs = []
        for _ in range(_SYNCS):
            began = time.perf_counter()
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            syncs.append((time.perf_counter() - began) * 1e3)
    return {"disk_write_bytes_s": _DISK_BYTES / seconds, "disk_sync_ms": sorted(syncs)[len(syncs) // 2]}
