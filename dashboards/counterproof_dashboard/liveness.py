"""Whether a process still writes a study, found without taking its lock."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TABLE = Path("/proc/locks")
_RECENT_SECONDS = 120.0


def held_by_a_process(lock: Path, table: Path = _TABLE) -> bool:
    """Whether some process on this machine holds an advisory lock on the file `lock`.

    The kernel's own table is read: asking by taking the lock could make a writer that starts at that moment fail.
    Where there is no such table, a folder that changed in the last two minutes counts as being written.
    """
    try:
        stat = lock.stat()
    except OSError:
        return False
    try:
        text = table.read_text(encoding="ascii", errors="replace")
    except OSError:
        return time.time() - _newest(lock.parent) < _RECENT_SECONDS
    # Some file systems report another device number to stat than to the lock table; the inode is the same.
    inode = f":{stat.st_ino}"
    return any(
        word.endswith(inode) for line in text.splitlines() if "->" not in line for word in line.split()
    )


def _newest(folder: Path) -> float:
    times = [entry.stat().st_mtime for entry in os.scandir(folder)]
    return max(times, default=0.0)
