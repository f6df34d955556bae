"""The Parquet tables a packet may hold: columns fixed by path, plain values only, no metadata.

The footer is judged before Arrow turns it into a schema, because a stored Arrow schema can name extension
types, and those have carried pickles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from counterproof.record.schema import REQUESTS
from counterproof_review.packet import layout
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive

MAX_FOOTER_STRING = 1 << 16
MAX_FOOTER_ITEMS = 1 << 16
BATCH_ROWS = 4096
MAX_TEXT_BYTES = 256  # digests, states, opaque names
MAX_ROW_BYTES = 1024  # plain rows of these columns take less than 300
MAX_OVERHEAD_BYTES = layout.MIB  # footer and page headers
_ENCODINGS = frozenset({"PLAIN", "RLE", "BIT_PACKED"})
_TAG = b"PAR1"

# One row per request of every timed run of the author: what the summaries are made of.
RESULT_ROWS = pa.schema([("arm", pa.string()), ("block", pa.int32()), *REQUESTS])
ALLOWED: dict[str, pa.Schema] = {layout.RESULT_ROWS: RESULT_ROWS}


def write(table: pa.Table, target: Any) -> None:
    """Write `table` in the only form that `check` accepts: plain, uncompressed, without metadata."""
    pq.write_table(
        table.replace_schema_metadata(None),
        target,
        compression="NONE",
        use_dictionary=False,
        store_schema=False,
        version="2.6",
        data_page_version="1.0",
        row_group_size=1 << 16,
    )


def check(archive: Archive, path: str) -> int:
    """Check a table against the columns its path allows; return its number of rows.

    Raises PacketError E_TABLE, E_PICKLE (objects or extension types), or E_LIMIT.
    """
    footer = _footer(archive, path)
    expected = _allowed(path)
    stored = dict(footer.metadata or {})
    if any(b"pickle" in v or b"extension" in v or b'"object"' in v for v in stored.values()):
        raise PacketError("E_PICKLE", "holds objects or extension types", path=path)
    if stored:
        names = ", ".join(sorted(ascii(k) for k in stored))
        raise PacketError("E_TABLE", f"carries metadata: {names}", path=path)
    if footer.num_rows > layout.MAX_ROWS:
        raise PacketError("E_LIMIT", f"{footer.num_rows} rows; at most {layout.MAX_ROWS}", path=path)
    size = archive.members[path].size
    if size > MAX_OVERHEAD_BYTES + footer.num_rows * MAX_ROW_BYTES:
        raise PacketError("E_LIMIT", f"{size} bytes for {footer.num_rows} rows", path=path)
    _check_columns(footer, expected, path)
    return int(footer.num_rows)


def batches(archive: Archive, path: str) -> Iterator[pa.RecordBatch]:
    """The rows of a checked table, a few thousand at a time, as values of valid UTF-8 and bounded length.

    What a page holds, its footer cannot promise: a dictionary page behind a footer that says PLAIN repeats one
    long text a million times. So texts are read as dictionaries and spelled out only after their length is known.
    """
    check(archive, path)
    try:
        for batch in _open(archive, path, _texts(path)).iter_batches(batch_size=BATCH_ROWS):
            yield _spelled_out(batch, path)
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise PacketError("E_TABLE", f"cannot be read: {_brief(error)}", path=path) from None


def _texts(path: str) -> list[str]:
    return [field.name for field in _allowed(path) if pa.types.is_string(field.type)]


def _spelled_out(batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
    columns = []
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            longest = pc.max(pc.binary_length(column.dictionary)).as_py() or 0
            if longest > MAX_TEXT_BYTES:
                raise PacketError("E_LIMIT", f"a text of {longest} bytes", path=path)
            column = column.dictionary_decode()
        columns.append(column)
    plain = pa.RecordBatch.from_arrays(columns, schema=_allowed(path))
    plain.validate(full=True)
    return plain


def _allowed(path: str) -> pa.Schema:
    if path not in ALLOWED:
        raise PacketError("E_TABLE", "no table may stand here", path=path)
    return ALLOWED[path]


def _open(archive: Archive, path: str, dictionaries: list[str] | None = None) -> pq.ParquetFile:
    return pq.ParquetFile(
        pa.PythonFile(archive.file(path), mode="r"),
        read_dictionary=dictionaries,
        thrift_string_size_limit=MAX_FOOTER_STRING,
        thrift_container_size_limit=MAX_FOOTER_ITEMS,
    )


def _footer(archive: Archive, path: str) -> pq.FileMetaData:
    head = archive.file(path)
    if head.read(4) != _TAG:
        raise PacketError("E_TABLE", "is not a Parquet file", path=path)
    try:
        return _open(archive, path).metadata
    except (pa.ArrowException, OSError) as error:
        raise PacketError("E_TABLE", f"its footer cannot be read: {_brief(error)}", path=path) from None


def _check_columns(footer: pq.FileMetaData, expected: pa.Schema, path: str) -> None:
    plain = cast(list[str], expected.names)
    columns = [footer.schema.column(i) for i in range(footer.num_columns)]
    if [c.path for c in columns] != plain:
        raise PacketError("E_TABLE", "its columns are not the ones that may stand here", path=path)
    if footer.schema.to_arrow_schema() != expected:
        raise PacketError("E_TABLE", "the type of a column is not the one that may stand here", path=path)
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            if column.compression != "UNCOMPRESSED" or not _ENCODINGS.issuperset(column.encodings):
                raise PacketError("E_TABLE", "is compressed or encoded by dictionary", path=path)


def _brief(error: BaseException) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
