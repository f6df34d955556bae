"""One line a study, kept between calls: a study whose files were not touched since is not read again.

Which is told by inode, size, modification and change time of the six files that a line depends on. The kernel sets
the change time; no program can put it back. A file that changed shortly before it was looked at could change again
within the clock's resolution, so its study's line is not kept (as git treats its index). The file of kept lines is
a view: damaged, of another version or missing, it is made anew, and a store that cannot be written goes without.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from counterproof import __version__
from counterproof.errors import EvidenceError
from counterproof.record import atomic, canonical
from counterproof.record.store import Store, StudyPaths

SCHEMA = "counterproof-summaries/1"
FILE_NAME = ".summaries.json"
RACY_NS = 2_000_000_000
FILES = ("plan.json", "journal.jsonl", "comparison.json", "decision.json", "report.html", "report.md")

# Makes a study's line from its files: its cells, and whether the line may be kept.
Make = Callable[[StudyPaths], tuple[tuple[str, ...], bool]]
_Print = list[list[int] | None]


def rows(store: Store, make: Make, *, version: str) -> tuple[list[tuple[str, ...]], int]:
    """The line of every study, in name order, and how many of them had to be made by `make`.

    version  of what `make` writes: lines of another one are not used
    """
    folders = store.study_folders()
    known = _read(store, version)
    kept: dict[str, list[Any]] = {}
    result = []
    made = 0
    for folder in folders:
        found = fingerprint(folder)
        old = known.get(folder.name)
        if old is not None and old[0] == found:
            row, keep = tuple(old[1]), True
        else:
            # The files are read after the fingerprint: what changes in between differs at the next look.
            row, keep = make(StudyPaths(folder))
            keep = keep and not _is_racy(found)
            made += 1
        if keep:
            kept[folder.name] = [found, list(row)]
        result.append(row)
    if made or len(kept) != len(known):
        _write(store, version, kept)
    return result, made


def fingerprint(folder: Path) -> _Print:
    """Inode, size, modification and change time of each file that a line depends on; None: it is not there."""
    found: _Print = []
    for name in FILES:
        try:
            stat = os.stat(f"{folder}/{name}")
        except FileNotFoundError:
            found.append(None)
        else:
            found.append([stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])
    return found


def _is_racy(found: _Print) -> bool:
    newest = max((entry[3] for entry in found if entry is not None), default=0)
    return newest > time.time_ns() - RACY_NS


def _read(store: Store, version: str) -> dict[str, Any]:
    path = store.root / FILE_NAME
    if not path.is_file():
        return {}
    try:
        content = canonical.read_json(path)
    except EvidenceError:
        return {}
    if not isinstance(content, dict) or content.get("of") != _of(version):
        return {}
    studies = content.get("studies")
    if not isinstance(studies, dict) or content.get("sha256") != canonical.sha256_json(studies):
        return {}
    return studies


def _write(store: Store, version: str, studies: dict[str, Any]) -> None:
    content = {"of": _of(version), "sha256": canonical.sha256_json(studies), "studies": studies}
    # A store that may only be read is listed without kept lines, which costs time and nothing else.
    with contextlib.suppress(OSError):
        atomic.write_bytes(store.root / FILE_NAME, canonical.dumps(content))


def _of(version: str) -> Sequence[str]:
    return [SCHEMA, __version__, version]
