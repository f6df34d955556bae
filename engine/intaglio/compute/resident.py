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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_DONTNEED = 4
_MAPS = "/proc/self/maps"
_SMAPS = "/proc/self/smaps"
_STATUS = "/proc/self/status"


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


def settle() -> int:
    """Give back what building something took and using it does not: freed memory of the heap, and code (drop_code).

    Returns the bytes of code given up. What is used after all comes back page by page.
    """
    trim = _libc("malloc_trim", ctypes.c_size_t)
    if trim is not None:
        trim(0)
    return drop_code()


def peak() -> int | None:
    """Most bytes that this process has had in memory at once so far; None on a system without /proc."""
    try:
        lines = Path(_STATUS).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    kib = next(found, None)
    return None if kib is None else int(kib) * 1024


def mapped(spans: Sequence[tuple[int, int]]) -> tuple[bool, ...]:
    """Which spans of memory (address, bytes) lie within one mapped file each. It stays so until that is unmapped."""
    files = [(one.start, one.end) for one in _mappings(_MAPS) if one.path.startswith("/")]
    return tuple(
        any(start <= address and address + nbytes <= end for start, end in files) for address, nbytes in spans
    )


def drop(address: int, nbytes: int) -> int:
    """Drop the whole pages of a read-only span that is `mapped`. Returns the bytes given up."""
    page = mmap.PAGESIZE
    return _advise(-(-address // page) * page, (address + nbytes) // page * page)


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
    call = _libc("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if call is None or end <= start or call(start, end - start, _DONTNEED) != 0:
        return 0
    return end - start


@functools.cache
def _libc(name: str, *arguments: type) -> Callable[..., int] | None:
    """A function of Linux' C library that returns an int; None elsewhere, or where it has none of that name."""
    if not sys.platform.startswith("linux"):
        return None
    call = getattr(ctypes.CDLL(None), name, None)
    if call is None:
        return None
    call.restype, call.argtypes = ctypes.c_int, list(arguments)
    checked: Callable[..., int] = call
    return checked
