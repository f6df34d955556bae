"""One line a study, kept between calls: a study whose files were not touched since is not read again.

Which is told by inode, size, modification and change time of the six files that a line depends on. The kernel sets
the change time; no program can put it back. A file that changed shortly before it was looked at could change again
within the clock's resolution, so its study's line is not kept (as git treats its index).

Lines are kept twice: all of them in one file of the store, and each beside its study from the moment its judgement is
over, so that the first listing of thousands reads little too. Both are views: damaged, of another version or missing,
they are made anew, and a store that cannot be written goes without.
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
LINE_NAME = ".summary.json"
RACY_NS = 2_000_000_000
FILES = ("plan.json", "journal.jsonl", "comparison.json", "decision.json", "report.html", "report.md")

# Makes a study's line from its files: its cells, and whether the line may be kept.
Make = Callable[[StudyPaths], tuple[tuple[str, ...], bool]]
_Print = list[list[int] | None]
# Told how many lines have to be made, before they are.
Tell = Callable[[int], None]


def rows(
    store: Store, make: Make, *, version: str, tell: Tell | None = None
) -> tuple[list[tuple[str, ...]], int]:
    """The line of every study, in name order, and how many of them had to be made by `make`.

    version  of what `make` writes: lines of another one are not used
    """
    folders = store.study_folders()
    known = _read(store.root / FILE_NAME, version)
    # The files are read after the fingerprint: what changes in between differs at the next look.
    prints = {folder.name: fingerprint(folder) for folder in folders}
    kept = {folder.name: old for folder in folders if (old := _known(folder, known, prints, version))}
    missing = [folder for folder in folders if folder.name not in kept]
    if tell is not None:
        tell(len(missing))
    fresh: dict[str, tuple[str, ...]] = {}
    for folder in missing:
        row, keep = make(StudyPaths(folder))
        fresh[folder.name] = row
        if keep and not _is_racy(prints[folder.name]):
            kept[folder.name] = [prints[folder.name], list(row)]
    if kept != known:
        _write(store.root / FILE_NAME, version, kept)
    result = [fresh[f.name] if f.name in fresh else tuple(kept[f.name][1]) for f in folders]
    return result, len(missing)


def keep(paths: StudyPaths, make: Make, *, version: str) -> bool:
    """Keep a study's line beside it, unless its files changed a moment ago. True if it is kept."""
    found = fingerprint(paths.folder)
    if _is_racy(found):
        return False
    row, may_keep = make(paths)
    if may_keep:
        _write(paths.folder / LINE_NAME, version, {paths.name: [found, list(row)]})
    return may_keep


def _known(folder: Path, known: dict[str, Any], prints: dict[str, _Print], version: str) -> list[Any] | None:
    """The kept line of a study whose files are as they were; None if there is none."""
    old: list[Any] | None = known.get(folder.name)
    if old is None or old[0] != prints[folder.name]:
        old = _read(folder / LINE_NAME, version).get(folder.name)
    return old if old is not None and old[0] == prints[folder.name] else None


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


def _read(path: Path, version: str) -> dict[str, Any]:
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


def _write(path: Path, version: str, studies: dict[str, Any]) -> None:
    content = {"of": _of(version), "sha256": canonical.sha256_json(studies), "studies": studies}
    # A store that may only be read is listed without kept lines, which costs time and nothing else.
    with contextlib.suppress(OSError):
        atomic.write_bytes(path, canonical.dumps(content))


def _of(version: str) -> Sequence[str]:
    return [SCHEMA, __version__, version]
