"""The DuckDB view: every table of every study in one file, replaced as a whole so that readers see a snapshot."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from counterproof.record import atomic, canonical, duckdb_rows
from counterproof.record.duckdb_parts import KEY, Part, part_of
from counterproof.record.schema import TABLES
from counterproof.record.verify import VerifiedStudy

# Studies that are loaded with one statement a table: a statement costs milliseconds, a file of it a fraction.
BATCH = 16
MEMORY_LIMIT = "1GB"
_TYPES = {"int32": "integer", "int64": "bigint", "string": "varchar", "double": "double", "bool": "boolean"}
# A statement of some seconds draws a bar on the standard output otherwise.
_QUIET = "set enable_progress_bar = false"

# Gaps are taken within a request only. One run at a time: a window over a whole study would be sorted at once.
_GAPS = """
with gaps as (
  select (time_ns - lag(time_ns) over (partition by request_index order by token_index)) / 1e6 as gap
  from tokens where study = ? and run = ?)
select (select count(*) from tokens where study = ? and run = ?), count(gap), avg(gap),
       quantile_cont(gap, [0.5, 0.95, 0.99]) from gaps where gap is not null"""


@dataclass(frozen=True)
class TokenGaps:
    """Time between the tokens of a request, over all requests of a run, in milliseconds. Every request counts here,
    whatever became of it. None: no request had two tokens. Quantiles interpolate linearly."""

    run: str
    tokens: int
    gaps: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


def update(path: Path, study: VerifiedStudy) -> None:
    """Put one study's current content into the file, in place of what it held of it. Readers keep theirs."""
    draft = _draft(path)
    if path.is_file():
        shutil.copyfile(path, draft)
    else:
        draft.unlink(missing_ok=True)
    _write(draft, [part_of([study])], replace=study.paths.name)
    os.replace(draft, path)
    atomic.sync_folder(path.parent)


def rebuild(path: Path, studies: Iterable[VerifiedStudy]) -> None:
    """Make the file anew from these studies alone, each of which has a name of its own."""
    rebuild_from(path, map(part_of, _batches(studies)))


def rebuild_from(path: Path, parts: Iterable[Part]) -> None:
    """The same from studies that were read already."""
    draft = _draft(path)
    draft.unlink(missing_ok=True)
    _write(draft, parts)
    os.replace(draft, path)
    atomic.sync_folder(path.parent)


def content_digest(path: Path) -> dict[str, str]:
    """sha256 over the sorted rows of each table: equal content, equal digests, however it came about."""
    result = {}
    with duckdb.connect(str(path), read_only=True) as connection:
        for (name,) in connection.execute("select table_name from information_schema.tables").fetchall():
            rows = connection.execute(f'select * from "{name}" order by all').fetchall()
            result[name] = canonical.sha256_json([list(row) for row in rows])
    return dict(sorted(result.items()))


def token_gaps(path: Path, study: str) -> list[TokenGaps]:
    """The gaps of every timed run of a study, in the order of their names; [] for a study that is not indexed."""
    found = []
    with duckdb.connect(str(path), read_only=True, config={"memory_limit": MEMORY_LIMIT}) as connection:
        connection.execute(_QUIET)
        query = "select run from runs where study = ? and phase = 'timed' order by run"
        for (run,) in connection.execute(query, [study]).fetchall():
            row = connection.execute(_GAPS, [study, run] * 2).fetchone() or (0, 0, None, None)
            found.append(TokenGaps(run, row[0], row[1], row[2], *(row[3] or (None, None, None))))
    return found


def _draft(path: Path) -> Path:
    """Where the next file is written, without the log that a killed writer may have left of its own."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.with_name(f"{draft.name}.wal").unlink(missing_ok=True)
    return draft


def _write(path: Path, parts: Iterable[Part], *, replace: str | None = None) -> None:
    """Add the parts to the file; `replace`: the study whose present rows go first.

    With one transaction: what it holds is written as it comes, but only its end costs a checkpoint. With one thread,
    since others read the next parts meanwhile.
    """
    with duckdb.connect(str(path), config={"memory_limit": MEMORY_LIMIT, "threads": 1}) as connection:
        connection.execute(_QUIET)
        connection.begin()
        for name, columns in _all_columns().items():
            connection.execute(f"create table if not exists {name} ({columns})")
            if replace is not None:
                connection.execute(f"delete from {name} where study = ?", [replace])
        for part in parts:
            _insert_plain(connection, part)
            _insert_files(connection, part)
        connection.commit()


def _batches(studies: Iterable[VerifiedStudy]) -> Iterator[list[VerifiedStudy]]:
    stream = iter(studies)
    while batch := list(itertools.islice(stream, BATCH)):
        yield batch


def _all_columns() -> dict[str, str]:
    """Each table's columns with their types, as DuckDB takes them."""
    result = {name: _columns(schema) for name, schema in duckdb_rows.PLAIN.items()}
    for file, schema in TABLES.items():
        result[file.removesuffix(".parquet")] = f"study varchar, run varchar, {_columns(schema)}"
    return result


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {_TYPES[str(field.type)]}" for field in schema)


def _insert_plain(connection: duckdb.DuckDBPyConnection, part: Part) -> None:
    for name, rows in part.plain.items():
        connection.register("new_rows", rows)
        connection.execute(f"insert into {name} select * from new_rows")
        connection.unregister("new_rows")


def _insert_files(connection: duckdb.DuckDBPyConnection, part: Part) -> None:
    connection.register("new_keys", part.keys)
    for name, rows in part.files.items():
        connection.register("new_rows", rows)
        connection.execute(
            f"insert into {name} select new_keys.study, new_keys.run, new_rows.* exclude ({KEY}) "
            f"from new_rows join new_keys using ({KEY})"
        )
        connection.unregister("new_rows")
    connection.unregister("new_keys")
    _insert_large(connection, part.large)


def _insert_large(connection: duckdb.DuckDBPyConnection, runs: Sequence[tuple[str, Path]]) -> None:
    """Parquet files that are streamed from the disk into the file, one at a time."""
    for study, folder in runs:
        for file, schema in TABLES.items():
            connection.execute(
                f"insert into {file.removesuffix('.parquet')} select ?, ?, {', '.join(schema.names)} from read_parquet(?)",
                [study, folder.name, str(folder / file)],
            )
