"""Some studies' content for the DuckDB view as Arrow tables, so that other processes can read the files.

A study of twenty-six runs has a hundred Parquet files, and opening them is what a rebuild takes its time for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from counterproof.record import duckdb_rows
from counterproof.record.schema import TABLES
from counterproof.record.verify import SealedRun, VerifiedStudy

# Parquet bytes that a part holds in memory; of what is beyond, only the paths are handed on.
BUDGET = 64 << 20
KEY = "key"


@dataclass(frozen=True)
class Part:
    """`plain`: rows of the plain tables. `keys`: key, study and run; `files`: rows of the runs' Parquet files by table,
    each with its run's key. `large`: study and folder of the runs whose files are still to be read."""

    studies: int
    plain: dict[str, pa.Table]
    keys: pa.Table
    files: dict[str, pa.Table]
    large: tuple[tuple[str, Path], ...]


def part_of(studies: Sequence[VerifiedStudy]) -> Part:
    """Read what the view holds of these studies. Raises duckdb.Error, pa.ArrowException, LookupError, TypeError,
    ValueError or AttributeError for files that do not have the expected form."""
    each = [duckdb_rows.plain_rows(study) for study in studies]
    plain = {
        name: duckdb_rows.arrow(name, [row for tables in each for row in tables[name]])
        for name in duckdb_rows.PLAIN
    }
    small: list[tuple[str, Path]] = []
    large: list[tuple[str, Path]] = []
    held = 0
    for study in studies:
        for run in study.runs:
            held += _size(run)
            (small if held <= BUDGET else large).append((study.paths.name, run.folder))
    keys = pa.table(
        {
            KEY: pa.array(range(len(small)), pa.int32()),
            "study": pa.array([study for study, _ in small], pa.string()),
            "run": pa.array([folder.name for _, folder in small], pa.string()),
        }
    )
    return Part(len(studies), plain, keys, _read([folder for _, folder in small]), tuple(large))


def _size(run: SealedRun) -> int:
    return sum(int(run.manifest["files"][file]["size"]) for file in TABLES)


def _read(folders: Sequence[Path]) -> dict[str, pa.Table]:
    """Each table's rows of all folders, with the folder's position. DuckDB opens a small file in half of the time that
    pyarrow takes."""
    if not folders:
        return {}
    found = {}
    # One thread: several processes do this at once.
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute("set enable_progress_bar = false")
        for file, schema in TABLES.items():
            paths = [str(folder / file) for folder in folders]
            columns = ", ".join(schema.names)
            relation = connection.sql(
                f"select file_index::integer as {KEY}, {columns} from read_parquet(?)", params=[paths]
            )
            found[file.removesuffix(".parquet")] = relation.to_arrow_table()
    return found
