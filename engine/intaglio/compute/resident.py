"""Give memory back that loading has made resident and running does not need: pages of files, kept by the system.

Linux counts every page of a mapped file that was ever touched. Those of a library's initialisers and of weights that
have been packed are needed no more; dropped from the process they stay in the system's cache, and a page that is
touched again comes back at the price of a minor fault.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_DONTNEED = 4
_MAPS = "/proc/self/maps"
_SMAPS = "/proc/self/smaps"


@dataclass(slots=True)
class _Mapping:
    """One mapping of the process. `dirty`: bytes that exist in this process only."""

    start: int
    end: int
    permissions: str
    path: str
    dirty: int = 0


def drop_code() -> int:
    """Drop the pages of mapped libraries that are unchanged copies of their files. Returns the bytes given up.

    Does nothing (0) on a system without /proc.
    """
    dropped = 0
    for one in _mappings(_SMAPS):
        if one.permissions in ("r-xp", "r--p") and one.path.startswith("/") and not one.dirty:
            dropped += _advise(one.start, one.end)
    return dropped


def drop_mapped(address: int, nbytes: int) -> int:
    """Drop whole pages of a read-only view into a mapped file. Returns the bytes given up; 0 if it is not one."""
    for one in _mappings(_MAPS):
        if one.start <= address < one.end:
            if not one.path.startswith("/") or address + nbytes > one.end:
                return 0
            page = mmap.PAGESIZE
            return _advise(-(-address // page) * page, (address + nbytes) // page * page)
    return 0


def _mappings(source: str) -> Iterator[_Mapping]:
    try:
        lines = Path(source).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    current: _Mapping | None = None
    for line in lines:
        name, _, rest = line.partition(" ")
        if name.endswith(":"):
            if current is not None and name == "Anonymous:":
                current.dirty = int(rest.split()[0]) * 1024
            continue
        if current is not None:
            yield current
        start, _, end = name.partition("-")
        words = rest.split(None, 4)
        current = _Mapping(int(start, 16), int(end, 16), words[0], words[4] if len(words) > 4 else "")
    if current is not None:
        yield current


def _advise(start: int, end: int) -> int:
    call = _madvise()
    if call is None or end <= start or call(start, end - start, _DONTNEED) != 0:
        return 0
    return end - start


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    call = ctypes.CDLL(None).madvise
    call.restype, call.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    checked: Callable[[int, int, int], int] = call
    return checked
