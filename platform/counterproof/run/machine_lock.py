"""One measured run at a time on a machine, whichever study or user it belongs to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from counterproof.record.lock import FileLock

VARIABLE = "COUNTERPROOF_MACHINE_LOCK"
WAIT_SECONDS = 7200.0


def machine_lock(on_wait: Callable[[], None] | None = None) -> FileLock:
    """The lock, to be held with `with` while a run is measured."""
    return FileLock(lock_path(), wait_s=WAIT_SECONDS, what="this machine", on_wait=on_wait)


def lock_path() -> Path:
    """The file that is locked. `$COUNTERPROOF_MACHINE_LOCK` names another one, for machines that are partitioned so
    that runs do not disturb each other."""
    given = os.environ.get(VARIABLE)
    return Path(given) if given else Path(tempfile.gettempdir()) / "counterproof-machine.lock"
