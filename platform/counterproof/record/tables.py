"""Rows to Parquet and back, by the schemas of `record.schema`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from counterproof.errors import EvidenceError
from counterproof.record.schema import SERVER_TABLES, TABLES


def write(folder: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one table of a run. A column that a row lacks is NULL, and so is a non-finite number.

    Raises EvidenceError for a column that the schema does not have or a value that does not fit it.
    """
    schema = {**TABLES, **SERVER_TABLES}[name]
    names = set(schema.names)
    complete = []
    for row in rows:
        if unknown := row.keys() - names:
            raise EvidenceError(f"{name} has no column {sorted(unknown)}")
        complete.append({column: _finite(row.get(column)) for column in schema.names})
    try:
        table = pa.Table.from_pylist(complete, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise EvidenceError(f"a row does not fit {name}: {error}") from None
    pq.write_table(table, folder / name, compression="zstd")


def read(path: Path) -> list[dict[str, Any]]:
    """All rows of a table. Raises EvidenceError when the file is no Parquet file."""
    try:
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise EvidenceError(f"{path.name} cannot be read as Parquet: {error}") from None
    return rows


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
