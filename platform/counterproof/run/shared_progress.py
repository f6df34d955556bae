"""A progress that several threads may tell at once."""

from __future__ import annotations

import threading

from counterproof.record.store import RunKey
from counterproof.run.places import Place
from counterproof.run.runner import Progress


class SharedProgress:
    """Passes everything on, one call at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()

    def run_started(self, key: RunKey, number: int, total: int) -> None:
        with self._lock:
            self._progress.run_started(key, number, total)

    def requests_done(self, done: int, total: int) -> None:
        with self._lock:
            self._progress.requests_done(done, total)

    def run_ended(self, key: RunKey, note: str) -> None:
        with self._lock:
            self._progress.run_ended(key, note)

    def waiting(self, what: str) -> None:
        with self._lock:
            self._progress.waiting(what)

    def extended(self, missing: list[Place], reason: str) -> None:
        with self._lock:
            self._progress.extended(missing, reason)
