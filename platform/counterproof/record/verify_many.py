"""Verifying every study of a store, on several cores where there are many."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from counterproof.errors import CounterproofError, EvidenceError
from counterproof.record.verify import VerifiedStudy, verify_study

# Below this, starting processes costs more than they save.
MANY = 64
WORKERS = 8


def verify_all(folders: Sequence[Path]) -> Iterator[tuple[str, VerifiedStudy | str]]:
    """Each study's name and its content, or the reason why it is refused; in the order of `folders`."""
    cores = min(len(os.sched_getaffinity(0)), WORKERS)
    if len(folders) < MANY or cores == 1:
        yield from map(_verify, folders)
        return
    # Not forked: the caller may hold threads of DuckDB.
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_verify, folders, chunksize=8)


def _verify(folder: Path) -> tuple[str, VerifiedStudy | str]:
    try:
        return folder.name, verify_study(folder)
    except EvidenceError as error:
        return folder.name, str(error)
    except (CounterproofError, LookupError, TypeError, ValueError, AttributeError) as error:
        return folder.name, f"its files do not have the expected form: {error!r}"
