"""Exclusive locks between processes. The kernel drops them when their holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from counterproof.errors import ExecutionError

POLL_SECONDS = 0.1


class FileLock:
    """`with FileLock(path): ...` holds an exclusive lock on `path`, a file, created when missing, or a folder.

    wait_s   how long to wait for another holder; afterwards ExecutionError
    on_wait  called once, when the lock is not free at the first try
    """

    def __init__(
        self, path: Path, *, wait_s: float = 0.0, what: str = "", on_wait: Callable[[], None] | None = None
    ) -> None:
        self._path = path
        self._wait_s = wait_s
        self._what = what or str(path)
        self._on_wait = on_wait
        self._descriptor = -1

    def __enter__(self) -> FileLock:
        self._descriptor = _open(self._path)
        deadline = time.monotonic() + self._wait_s
        told = False
        while not self._try():
            if not told and self._on_wait is not None:
                self._on_wait()
            told = True
            if time.monotonic() >= deadline:
                os.close(self._descriptor)
                raise ExecutionError(
                    f"{self._what} is in use by another process",
                    details=[f"lock: {self._path}", "wait until it has finished, then try again"],
                )
            time.sleep(POLL_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _open(path: Path) -> int:
    # Another user's lock file in a shared folder may be opened but not created anew, hence two steps.
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except (IsADirectoryError, PermissionError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
