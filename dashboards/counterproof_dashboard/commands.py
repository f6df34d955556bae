"""`counterproof dashboard`: starts the pages on this machine and stops them again."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import FrameType
from typing import IO

from counterproof.errors import EXIT_OK, ExecutionError, InputError, SetupError
from counterproof.record.store import open_store

APP = Path(__file__).resolve().parent / "app.py"
START_SECONDS = 90.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1

EXAMPLES = """examples:
  counterproof dashboard
  counterproof dashboard --store /data/store --port 8600
  counterproof dashboard --headless --host 0.0.0.0     (do not open a browser; reachable from other machines)
"""


def register(subparsers: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    """Add the `dashboard` command."""
    parser = subparsers.add_parser(
        "dashboard",
        help="look at studies in the browser",
        description="Serve the Streamlit pages that list studies and compare their arms. Nothing is written.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--store", metavar="DIR", help="the store (default: $COUNTERPROOF_STORE, else ./store)"
    )
    parser.add_argument("--port", type=int, default=8501, help="TCP port (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--headless", action="store_true", help="do not open a browser")
    parser.set_defaults(func=serve)


def serve(args: argparse.Namespace) -> int:
    """Start the server, say where it is, and wait until it is interrupted.

    Raises InputError for a store or port that cannot be, SetupError when the port is taken, and ExecutionError
    when the server does not come up or stops by itself.
    """
    store = open_store(args.store).root
    if args.store is not None and not store.is_dir():
        raise InputError(f"there is no store at {store}", details=["leave out --store to read ./store"])
    if not 1 <= args.port <= 65_535:
        raise InputError(f"{args.port} is not a TCP port", details=["use a number from 1 to 65535"])
    _check_free(args.host, args.port)
    with tempfile.TemporaryFile("w+b") as log:
        child = _start(args, store, log)
        previous = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            _wait_until_healthy(child, args, log)
            print(f"Counterproof dashboard: {_url(args.host, args.port)}", flush=True)
            print(f"store: {store}", "Press Ctrl-C to stop.", sep="\n", flush=True)
            code = child.wait()
            raise ExecutionError(f"the dashboard stopped by itself (exit {code})", details=_last_lines(log))
        except KeyboardInterrupt:
            print("Stopping the dashboard.", flush=True)
            return EXIT_OK
        finally:
            _stop(child)
            for number, handler in previous.items():
                signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def arguments(host: str, port: int, headless: bool) -> list[str]:
    """What Streamlit is started with: no telemetry, no file watcher, no development menu."""
    settings = {
        # Streamlit takes any place that is not called site-packages (pip install --target) for its own checkout.
        "global.developmentMode": "false",
        "server.address": host,
        "server.port": str(port),
        "server.headless": str(headless).lower(),
        "server.fileWatcherType": "none",
        "server.showEmailPrompt": "false",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        # What is chosen is marked blue: Streamlit's own red means a loss on these pages. One colour for both
        # themes would take the dark one away.
        "theme.light.primaryColor": "#2f6fc4",
        "theme.dark.primaryColor": "#6ea8f0",
    }
    return [str(APP), *(f"--{name}={value}" for name, value in settings.items())]


def _check_free(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise InputError(f"'{host}' is not an address of this machine: {error.strerror}") from None
    with socket.socket(family, kind, protocol) as probe:
        # Without this a port whose last connection has just closed would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise SetupError(
                f"port {port} on {host} cannot be used: {error.strerror}",
                details=[f"take another one: counterproof dashboard --port {min(port + 1, 65_535)}"],
            ) from None


def _start(args: argparse.Namespace, store: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    argv = [
        sys.executable,
        "-m",
        "counterproof_dashboard.server",
        *arguments(args.host, args.port, args.headless),
    ]
    environment = {**os.environ, "COUNTERPROOF_STORE": str(store)}
    # A session of its own: Ctrl-C reaches this process alone, which then stops the child in order.
    return subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
    )


def _url(host: str, port: int) -> str:
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


def _wait_until_healthy(child: subprocess.Popen[bytes], args: argparse.Namespace, log: IO[bytes]) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise ExecutionError(
                f"the dashboard did not start (exit {child.returncode})", details=_last_lines(log)
            )
        try:
            with opener.open(f"{_url(args.host, args.port)}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_SECONDS)
    raise ExecutionError(
        f"the dashboard gave no answer within {START_SECONDS:.0f} s", details=_last_lines(log)
    )


def _last_lines(log: IO[bytes], most: int = 8) -> list[str]:
    # The child shares the file's position, so the file is read without moving it.
    raw = os.pread(log.fileno(), 64 * 1024, max(0, os.fstat(log.fileno()).st_size - 64 * 1024))
    return raw.decode("utf-8", "replace").strip().splitlines()[-most:]


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the child: closing its input asks, a signal insists, a kill ends it."""
    if child.stdin is not None:
        child.stdin.close()
    for insist in (child.terminate, child.kill):
        try:
            child.wait(STOP_SECONDS if insist == child.terminate else 2.0)
            return
        except subprocess.TimeoutExpired:
            insist()
    child.wait(STOP_SECONDS)
