"""Verifying every study of a store and reading it for the DuckDB view, on several cores where there are many."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from counterproof.errors import CounterproofError, EvidenceError
from counterproof.record.duckdb_parts import Part, part_of
from counterproof.record.duckdb_view import BATCH
from counterproof.record.verify import VerifiedStudy, verify_study

# Below this, starting processes costs more than they save.
MANY = 64
WORKERS = 8
# Batches a process may be ahead of what the view has taken in: so much lies in memory.
AHEAD = 2
_MALFORMED = (
    CounterproofError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    duckdb.Error,
    pa.ArrowException,
)


@dataclass(frozen=True)
class Batch:
    """Each study's name and its content, or the reason why it is refused; and what the view holds of the good ones."""

    outcomes: tuple[tuple[str, VerifiedStudy | str], ...]
    part: Part


def read_all(folders: Sequence[Path]) -> Iterator[Batch]:
    """Verify and read every study, in the order of `folders`."""
    batches = [folders[start : start + BATCH] for start in range(0, len(folders), BATCH)]
    cores = min(len(os.sched_getaffinity(0)), WORKERS)
    if len(folders) < MANY or cores == 1:
        yield from map(_read, batches)
        return
    # Not forked: the caller may hold threads of DuckDB.
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        running: deque[Future[Batch]] = deque()
        for batch in batches:
            if len(running) == AHEAD * cores:
                yield running.popleft().result()
            running.append(pool.submit(_read, batch))
        while running:
            yield running.popleft().result()


def _read(folders: Sequence[Path]) -> Batch:
    outcomes = [_verify(folder) for folder in folders]
    studies = [found for _, found in outcomes if isinstance(found, VerifiedStudy)]
    try:
        return Batch(tuple(outcomes), part_of(studies))
    except _MALFORMED:
        # One of them: which is told by reading each alone.
        outcomes = [(name, _readable(found)) for name, found in outcomes]
        good = [found for _, found in outcomes if isinstance(found, VerifiedStudy)]
        return Batch(tuple(outcomes), part_of(good))


def _verify(folder: Path) -> tuple[str, VerifiedStudy | str]:
    try:
        return folder.name, verify_study(folder)
    except EvidenceError as error:
        return folder.name, str(error)
    except _MALFORMED as error:
        return folder.name, f"its files do not have the expected form: {error!r}"


def _readable(found: VerifiedStudy | str) -> VerifiedStudy | str:
    if isinstance(found, str):
        return found
    try:
        part_of([found])
    except _MALFORMED as error:
        return f"its tables do not have the expected form: {error!r}"
    return found
