"""An `intaglio serve` in a process of its own, watched from outside: address, memory, sockets, what it says of itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import httpx
import psutil

START_S = 180.0
END_S = 120.0


class ServeProcess:
    """A server on a free port, used as a context; it is told to end politely and must leave with 0."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)
        # Closed on leaving the context.
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> ServeProcess:
        command = [sys.executable, "-m", "intaglio", "serve", "--port", "0", "--ready-json", *self._arguments]
        environment = {key: value for key, value in os.environ.items() if key != "INTAGLIO_API_KEY"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment
        )
        overdue = threading.Timer(START_S, self.process.kill)
        overdue.start()
        line = self.process.stdout.readline() if self.process.stdout else ""
        overdue.cancel()
        if not line:
            self.process.kill()
            self.process.wait(END_S)
            raise SystemExit(f"the server did not start:\n{self.log}")
        ready = json.loads(line)
        self.url = f"http://{ready['host']}:{ready['port']}"
        self._seen = psutil.Process(self.process.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(END_S)
        if self.process.stdout:
            self.process.stdout.close()
        self._log.close()

    @property
    def log(self) -> str:
        """The end of what the server wrote to standard error."""
        self._log.seek(0)
        return self._log.read()[-4000:]

    @property
    def rss(self) -> int:
        """Resident set, bytes."""
        return int(self._seen.memory_info().rss)

    @property
    def connections(self) -> int:
        """Open TCP connections, the listening socket apart."""
        return sum(each.status != psutil.CONN_LISTEN for each in self._seen.net_connections("tcp"))

    @property
    def descriptors(self) -> int:
        """Open file descriptors."""
        return int(self._seen.num_fds())

    def told(self) -> dict[str, Any]:
        """What the server says: effective configuration, counters, gauges."""
        answer = httpx.get(f"{self.url}/intaglio/effective", timeout=60)
        document: dict[str, Any] = answer.raise_for_status().json()
        return document

    def disconnects(self) -> int:
        """Clients that the server saw leaving before their answer."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).raise_for_status().text
        (line,) = [line for line in text.splitlines() if line.startswith("intaglio_disconnects_total ")]
        return int(line.split()[1])

    def end(self) -> int:
        """Ask it to end, and wait. Returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)
