"""A temporary PostgreSQL cluster and an MLflow server, each with deadlines and gone afterwards.

PostgreSQL refuses to run as root: started by root, it runs as the user `postgres` of Debian's package.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

START_SECONDS = 120.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.1


def programs() -> Path | None:
    """The folder with PostgreSQL's programs, of the newest version that is installed; None without any."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    given = shutil.which("initdb")
    return Path(given).parent if given else None


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A cluster with its data under `folder`, on a free port of 127.0.0.1. Yields its address with the password."""
    found = programs()
    if found is None:
        raise FileNotFoundError("initdb")
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = {"user": "postgres", "group": "postgres", "extra_groups": []}
    # Tests' own folders may not be entered by another user, so the cluster has a place of its own.
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as place:
        data, secret, password = Path(place) / "data", Path(place) / "secret", secrets.token_hex(16)
        secret.write_text(password, encoding="utf-8")
        if user:
            for path in (Path(place), secret):
                shutil.chown(path, "postgres", "postgres")
        run = [found / "initdb", "-D", data, "-U", "tracker", "-A", "scram-sha-256", "--pwfile", secret, "-N"]
        run += ["--no-locale", "-E", "UTF8"]
        subprocess.run(run, check=True, capture_output=True, timeout=START_SECONDS, cwd=place, **user)
        port = free_port()
        command = [found / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", "", "-F"]
        with process(command, folder / "postgres.log", cwd=place, stop=signal.SIGINT, **user) as server:
            ready = [str(found / "pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-q"]
            wait_until(lambda: subprocess.run(ready, check=False, timeout=10).returncode == 0, server)
            yield f"postgresql://tracker:{password}@127.0.0.1:{port}/postgres"


@contextlib.contextmanager
def mlflow_server(folder: Path, backend: str, port: int) -> Iterator[str]:
    """`mlflow server` with metadata in `backend` and artifacts under `folder`. Yields its address."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    # The driver is named: which one stands for the plain name has changed between versions of SQLAlchemy.
    named = backend.replace("postgresql://", "postgresql+psycopg2://", 1)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", named]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--workers", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    address = f"http://127.0.0.1:{port}"
    with process(command, folder / "mlflow.log", env={**environment, "DO_NOT_TRACK": "true"}) as server:
        wait_until(lambda: answers(f"{address}/health"), server)
        yield address


@contextlib.contextmanager
def process(
    command: list[Any], log: Path, *, stop: signal.Signals = signal.SIGTERM, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own; at the end it is asked to leave, and killed with its group past a deadline."""
    with log.open("ab") as stream:
        child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            **options,
        )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(stop)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(STOP_SECONDS)


def wait_until(ready: Callable[[], bool], server: subprocess.Popen[bytes]) -> None:
    """Ask until it is. Raises TimeoutError past the deadline, ChildProcessError when the server has ended."""
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if server.poll() is not None:
            raise ChildProcessError(f"the server ended with code {server.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the server was not ready after {START_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def answers(address: str) -> bool:
    """Whether a GET is answered with success."""
    try:
        with urllib.request.urlopen(address, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    """A port of 127.0.0.1 that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
