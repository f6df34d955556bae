"""Nothing that could run is read, whatever it is called, and tables hold plain values only."""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterproof.errors import EXIT_INPUT
from counterproof_review.packet import layout

INPUT = "replay/inputs/block-00.jsonl"


class Canary:
    """Leaves a trace if it is ever unpickled."""

    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return (_touch, (self.trace, "w"))


def _touch(path: str, mode: str) -> None:
    Path(path).open(mode).close()


@pytest.mark.parametrize(
    "name",
    ["x.pkl", "x.pt", "x.pth", "x.bin", "x.joblib", "x.npy", "x.npz", "x.ckpt", "a/b.pickle", "x.py", "x.so"],
)
def test_pickle_by_name(members: Any, tmp_path: Path, name: str) -> None:
    trace = tmp_path / "trace"
    members.files[name] = pickle.dumps(Canary(str(trace)))
    error = members.refusal(honest_manifest=False)
    assert (error.code, error.exit_code) == ("E_PICKLE", EXIT_INPUT)
    assert not trace.exists()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("path", [layout.PREREG, INPUT, layout.PACKET, "replay/arms/00000000.json"])
def test_pickle_renamed(members: Any, tmp_path: Path, protocol: int, path: str) -> None:
    trace = tmp_path / "trace"
    canary = pickle.dumps(Canary(str(trace)), protocol)
    members.files[path] = canary
    assert members.refusal().code == "E_PICKLE"
    assert not trace.exists()
    pickle.loads(canary)
    assert trace.exists(), "the canary must sing when it is unpickled, or this test proves nothing"


def test_other_containers_renamed(members: Any) -> None:
    array = io.BytesIO()
    np.save(array, np.array([{}], dtype=object), allow_pickle=True)
    for content in (
        array.getvalue(),
        b"PK\x03\x04" + bytes(40),
        b"\x7fELF" + bytes(40),
        b"#!/bin/sh\n",
        zlib.compress(b"x"),
    ):
        members.files[layout.NOISE] = content
        assert members.refusal().code == "E_PICKLE"


def test_table_with_pickled_extension_type(members: Any) -> None:
    schema = pa.schema(
        [pa.field("arm", pa.string(), metadata={"ARROW:extension:name": "arrow.py_extension_type"})]
    )
    table = pa.table({"arm": ["x"]}, schema=schema)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    members.files[layout.RESULT_ROWS] = sink.getvalue()
    assert members.refusal().code in {"E_PICKLE", "E_TABLE"}
    sink = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata({"pandas": '{"pandas_type": "object", "metadata": "pickle"}'}), sink
    )
    members.files[layout.RESULT_ROWS] = sink.getvalue()
    assert members.refusal().code == "E_PICKLE"


def test_table_with_other_columns_types_metadata_or_compression(members: Any) -> None:
    frame = pq.read_table(io.BytesIO(members.files[layout.RESULT_ROWS]))
    variants: list[tuple[pa.Table, dict[str, Any]]] = [
        (frame.append_column("note", pa.array(["x"] * frame.num_rows)), {}),
        (frame.drop_columns(["error"]), {}),
        (frame.set_column(1, "block", frame["block"].cast(pa.int64())), {}),
        (frame.set_column(0, "arm", frame["arm"].cast(pa.binary())), {}),
        (frame.replace_schema_metadata({"author": "somebody"}), {}),
        (frame, {"compression": "zstd"}),
        (frame, {"use_dictionary": True}),
    ]
    for table, options in variants:
        sink = io.BytesIO()
        chosen: dict[str, Any] = {
            "compression": "NONE",
            "use_dictionary": False,
            "store_schema": False,
            **options,
        }
        if table.schema.metadata:
            chosen["store_schema"] = True
        pq.write_table(table, sink, **chosen)
        members.files[layout.RESULT_ROWS] = sink.getvalue()
        assert members.refusal().code == "E_TABLE", options
    for content in (
        b"",
        b"PAR1",
        b"PAR1" + bytes(200) + b"PAR1",
        b"PAR1" + b"\xff" * 200 + struct.pack("<I", 200) + b"PAR1",
    ):
        members.files[layout.RESULT_ROWS] = content
        assert members.refusal().code == "E_TABLE"
