"""Tables whose pages are not what their footer says."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterproof_review.packet import layout, tables
from counterproof_review.packet.reader import Archive

LONG = 500_000


def put(members: Any, table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    chosen = {"compression": "NONE", "use_dictionary": False, "store_schema": False, **options}
    pq.write_table(table.replace_schema_metadata(None), sink, **chosen)
    members.files[layout.RESULT_ROWS] = sink.getvalue()
    return sink.getvalue()


def rows(members: Any) -> pa.Table:
    return pq.read_table(io.BytesIO(members.files[layout.RESULT_ROWS]))


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def test_a_dictionary_behind_a_footer_that_says_plain(members: Any) -> None:
    """One long text, repeated by reference: it is refused before it is spelled out row by row."""
    table = rows(members)
    repeated = pa.DictionaryArray.from_arrays(
        pa.array([0] * table.num_rows, pa.int32()), pa.array(["x" * LONG])
    )
    written = put(
        members, with_column(table, "error", repeated), use_dictionary=["error"], write_statistics=False
    )
    footer = len(written) - 8 - int.from_bytes(written[-8:-4], "little")
    # A list of three encodings in the footer's thrift: PLAIN, RLE, RLE_DICTIONARY becomes PLAIN, RLE, PLAIN.
    lied = written[footer:].replace(b"\x35\x00\x06\x10", b"\x35\x00\x06\x00")
    assert lied != written[footer:]
    members.files[layout.RESULT_ROWS] = written[:footer] + lied
    with Archive.open(members.pack()) as archive:
        assert tables.check(archive, layout.RESULT_ROWS) == table.num_rows  # the footer alone tells nothing
    before = pa.total_allocated_bytes()
    error = members.refusal()
    assert (error.code, error.path) == ("E_LIMIT", layout.RESULT_ROWS)
    assert pa.total_allocated_bytes() - before < LONG * table.num_rows / 2


def test_more_bytes_than_the_rows_can_need(members: Any) -> None:
    table = rows(members)
    text = "x" * (2 * tables.MAX_OVERHEAD_BYTES // table.num_rows + 2 * tables.MAX_ROW_BYTES)
    put(members, with_column(table, "error", pa.array([text] * table.num_rows)))
    assert members.refusal().code == "E_LIMIT"


def test_more_rows_than_the_runs_need_are_not_read(members: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(*_: Any) -> Any:
        raise AssertionError("rows were read")

    table = rows(members)
    put(members, pa.concat_tables([table] * 50))
    monkeypatch.setattr(tables, "batches", unread)
    assert members.refusal().code == "E_ROWS"


@pytest.mark.parametrize("column", ["arm", "status", "output_sha256"])
def test_texts_that_are_no_utf8(members: Any, column: str) -> None:
    table = rows(members)
    broken = pa.array([b"\xed\xa0\x80"] * table.num_rows, pa.binary()).view(pa.string())
    put(members, with_column(table, column, broken))
    assert members.refusal().code == "E_TABLE"
