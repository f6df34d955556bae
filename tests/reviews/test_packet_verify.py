"""Every way in which a packet has been tampered with in the field, each refused with its own code."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from counterproof.errors import EXIT_INPUT, EXIT_INVALID, EXIT_SETUP
from counterproof_review.packet import archive, layout, manifest, tables
from counterproof_review.packet.build import Built
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.verify import Verification

ARM = "replay/arms/"
INPUT = "replay/inputs/block-00.jsonl"


def dump(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def edit(members: Any, path: str, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads(members.files[path])
    change(document)
    members.files[path] = dump(document)


def an_arm(members: Any) -> str:
    return min(path for path in members.files if path.startswith(ARM))


# -- what is right ------------------------------------------------------------------------------------------


def test_a_built_packet_passes_every_check(built: Built, verify_file: Callable[..., Verification]) -> None:
    report = verify_file(built.path)
    assert [check.name for check in report.checks] == [
        "container",
        "schema",
        "closed world",
        "digests",
        "documents",
        "arms",
        "inputs",
        "leaks",
        "author's results",
    ]
    assert {check.status for check in report.checks} == {"passed"}
    assert report.root == built.root
    assert len(report.arms) == 4


def test_packing_the_same_members_again_changes_nothing(members: Any, built: Built) -> None:
    assert members.pack().read_bytes() == built.path.read_bytes()


def test_another_root_than_the_one_given(built: Built, verify_file: Callable[..., Verification]) -> None:
    assert verify_file(built.path, root=built.root.upper()).root == built.root
    with pytest.raises(PacketError, match="E_ROOT"):
        verify_file(built.path, root="0" * 64)


# -- the closed world ---------------------------------------------------------------------------------------


def test_tampered_byte(members: Any) -> None:
    """A same-size edit whose CRC-32 was fixed up: only the manifest's digest tells."""
    members.files[INPUT] = members.files[INPUT].replace(b'"max_new_tokens":24', b'"max_new_tokens":25', 1)
    error = members.refusal(honest_manifest=False)
    assert (error.code, error.path, error.exit_code) == ("E_HASH", INPUT, EXIT_INVALID)


def test_extra_file(members: Any) -> None:
    members.files["leak.txt"] = b"the candidate is 54932802"
    error = members.refusal(honest_manifest=False)
    assert (error.code, error.path, error.exit_code) == ("E_EXTRA", "leak.txt", EXIT_INVALID)


def test_extra_file_that_the_manifest_lists(members: Any) -> None:
    """Even an honest manifest cannot add a file that nothing reads."""
    files = dict(members.files)
    extra = b"{}\n"
    line = json.loads(files["MANIFEST.jsonl"].splitlines()[0])
    rows = [json.loads(row) for row in files["MANIFEST.jsonl"].splitlines()]
    import hashlib

    rows.append(
        {**line, "path": "replay/notes.json", "sha256": hashlib.sha256(extra).hexdigest(), "size": len(extra)}
    )
    files["MANIFEST.jsonl"] = b"".join(dump(row) for row in sorted(rows, key=lambda r: str(r["path"])))
    files["replay/notes.json"] = extra
    members.files = files
    error = members.refusal(honest_manifest=False)
    assert (error.code, error.path) == ("E_EXTRA", "replay/notes.json")


def test_missing_sample(members: Any) -> None:
    del members.files[INPUT]
    error = members.refusal(honest_manifest=False)
    assert (error.code, error.path, error.exit_code) == ("E_MISSING", INPUT, EXIT_INVALID)


def test_missing_sample_with_an_honest_manifest(members: Any) -> None:
    del members.files[INPUT]
    error = members.refusal()
    assert (error.code, error.path) == ("E_MISSING", INPUT)


def test_missing_rows_are_not_averaged_over(members: Any) -> None:
    lines = members.files[INPUT].splitlines(keepends=True)
    members.files[INPUT] = b"".join(lines[:-1])
    error = members.refusal()
    assert (error.code, error.path, error.exit_code) == ("E_ROWS", INPUT, EXIT_INVALID)


def test_missing_author_rows(members: Any) -> None:
    rewrite_rows(members, lambda frame: frame.drop(index=5))
    assert members.refusal().code == "E_ROWS"


def test_summaries_that_do_not_follow_from_the_rows(members: Any) -> None:
    def faster(frame: Any) -> Any:
        first = frame["arm"].iloc[0]
        frame.loc[(frame["arm"] == first) & (frame["block"] == 2), "last_token_ns"] -= 50_000_000
        return frame

    rewrite_rows(members, faster)
    assert "do not follow" in str(members.refusal())


def test_ratios_that_do_not_follow_from_the_summaries(members: Any) -> None:
    def inflate(document: dict[str, Any]) -> None:
        document["log_ratios"]["candidate"] = [v * 1.5 for v in document["log_ratios"]["candidate"]]

    edit(members, layout.RESULTS, inflate)
    error = members.refusal()
    assert (error.code, error.exit_code) == ("E_ROWS", EXIT_INVALID)


def rewrite_rows(members: Any, change: Callable[[Any], Any]) -> None:
    frame = pq.read_table(io.BytesIO(members.files[layout.RESULT_ROWS])).to_pandas()
    table = pa.Table.from_pandas(change(frame), schema=tables.RESULT_ROWS, preserve_index=False)
    sink = io.BytesIO()
    tables.write(table, sink)
    members.files[layout.RESULT_ROWS] = sink.getvalue()


@pytest.mark.parametrize("path", sorted(place.name for place in layout.PLACES if "<" not in place.name))
def test_every_required_file_is_required(members: Any, path: str) -> None:
    del members.files[path]
    assert members.refusal().code == "E_MISSING"


def test_a_manifest_with_other_roles_order_or_repetition(members: Any) -> None:
    rows = members.files["MANIFEST.jsonl"].splitlines(keepends=True)
    for lines, code in (
        (rows[::-1], "E_ORDER"),
        ([rows[0], *rows], "E_DUPLICATE"),
        ([rows[0].replace(b'"role":"packet"', b'"role":"paquet"'), *rows[1:]], "E_SCHEMA"),
        ([rows[0].replace(b'"size":', b'"syze":'), *rows[1:]], "E_SCHEMA"),
        ([b'{"path":"../x"}\n', *rows], "E_SCHEMA"),
    ):
        members.files["MANIFEST.jsonl"] = b"".join(lines)
        assert members.refusal(honest_manifest=False).code == code


# -- pickles ------------------------------------------------------------------------------------------------


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


# -- schema and strict JSON ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "replication-packet/2"},
        {"schema": "replication-packet/17"},
        {"critical": ["open-results", "sealed-results"]},
        {"critical": ["signatures"]},
    ],
)
def test_newer_schema(members: Any, change: dict[str, Any]) -> None:
    """Refused before anything else of the packet is read: here everything else is broken."""
    edit(members, layout.PACKET, lambda document: document.update(change))
    members.files[layout.PREREG] = b"not JSON at all"
    error = members.refusal()
    assert (error.code, error.exit_code) == ("E_SCHEMA_NEWER", EXIT_SETUP)


@pytest.mark.parametrize("schema", ["replication-packet/0", "replication-packet/", "packet/1", "", 1, None])
def test_no_schema_of_ours(members: Any, schema: object) -> None:
    edit(members, layout.PACKET, lambda document: document.update(schema=schema))
    assert members.refusal().code == "E_SCHEMA"


def test_unknown_field_is_a_warning_and_survives(
    members: Any, verify_file: Callable[..., Verification]
) -> None:
    edit(members, layout.PREREG, lambda document: document.update(season=4))
    report = verify_file(members.pack())
    assert [c.detail for c in report.checks if c.status == "warning"] == [
        f"{layout.PREREG}: unknown fields kept and ignored: season"
    ]
    assert report.documents[layout.PREREG]["season"] == 4


def test_a_missing_field_or_another_type(members: Any) -> None:
    original = dict(members.files)
    for path, change in (
        (layout.PREREG, lambda d: d.pop("min_blocks")),
        (layout.PREREG, lambda d: d.update(blocks=True)),
        (layout.SCOPE, lambda d: d.update(dtype=None)),
        (layout.NOISE, lambda d: d.update(schema="replication-prereg/1")),
        (layout.PACKET, lambda d: d.update(blinding_level="L3")),
    ):
        members.files = dict(original)
        edit(members, path, change)
        assert members.refusal().code == "E_SCHEMA"


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}\n',
        '{"a":NaN}\n',
        '{"a":Infinity}\n',
        '{"a":1e400}\n',
        '{"a":9007199254740993}\n',
        '\ufeff{"a":1}\n',
        "[" * 5000 + "]" * 5000 + "\n",
    ],
)
@pytest.mark.parametrize("path", [layout.PACKET, layout.PREREG, INPUT, layout.RESULTS, "MANIFEST.jsonl"])
def test_strict_json_in_every_document(members: Any, path: str, text: str) -> None:
    members.files[path] = text.encode()
    assert members.refusal(honest_manifest=path != "MANIFEST.jsonl").code == "E_JSON"


def test_another_encoding_of_the_same_document(members: Any) -> None:
    document = json.loads(members.files[layout.PREREG])
    members.files[layout.PREREG] = json.dumps(document, indent=1, sort_keys=True).encode()
    assert members.refusal().code == "E_CANONICAL"


# -- arms and models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"model": "/home/alice/model"}, "E_UNSAFE"),
        ({"model": "smollm2-135m"}, "E_UNSAFE"),
        ({"model": "sha256:" + "0" * 64}, "E_UNSAFE"),
        ({"speculation.draft_model": "../../draft"}, "E_UNSAFE"),
        ({"_target_": "os.system"}, "E_ARMS"),
        ({"kv_cache.enabled": "true"}, "E_ARMS"),
        ({"scheduler.max_running": 16.0}, "E_ARMS"),
        ({"scheduler.max_running": 10**9}, "E_ARMS"),
    ],
)
def test_arm_with_a_place_code_or_another_type(members: Any, change: dict[str, Any], code: str) -> None:
    edit(members, an_arm(members), lambda document: document["engine"].update(change))
    assert members.refusal().code == code


def test_arm_with_another_set_of_keys(members: Any) -> None:
    edit(members, an_arm(members), lambda document: document["engine"].pop("dtype"))
    assert members.refusal().code == "E_ARMS"


def test_arm_with_something_beside_the_engine(members: Any) -> None:
    edit(members, an_arm(members), lambda document: document.update(argv=["sh", "-c", "true"]))
    assert members.refusal().code == "E_SCHEMA"


@pytest.mark.parametrize(
    "name", ["../../evil.json", "/etc/x.json", "a/b.safetensors", "model.bin", "run.py", ".x.json"]
)
def test_model_file_with_an_unsafe_name(members: Any, name: str) -> None:
    edit(members, layout.MODELS_LOCK, lambda document: document["models"][0]["files"][0].update(name=name))
    assert members.refusal().code == "E_UNSAFE"


def test_arms_that_the_results_do_not_map(members: Any) -> None:
    edit(members, layout.RESULTS, lambda document: document["arms"].update(baseline="00000000"))
    assert members.refusal().code == "E_ARMS"


# -- leaks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "planted"),
    [
        (layout.PREREG, {"note": "the candidate should win"}),
        (layout.NOISE, {"Baseline": 1}),
        (layout.SCOPE, {"where": "/home/alice/models"}),
        (layout.LINEAGE, {"created_utc": "x"}),
        (layout.LINEAGE, {"when": "2026-01-02T03:04:05Z"}),
        (layout.ENVIRONMENT, {"id": {"mail": "alice@example.org"}}),
        (layout.CODE_LOCK, {"token": "hf_abcdefghijklmnopqrstuvwx"}),
        (layout.SCHEDULE, {"server": "10.1.2.3:5000"}),
    ],
)
def test_planted_leak(members: Any, path: str, planted: dict[str, Any]) -> None:
    edit(members, path, lambda document: document.update(planted))
    error = members.refusal()
    assert (error.code, error.exit_code) == ("E_LEAK", EXIT_INVALID)
    assert path in str(error)


# -- any byte -----------------------------------------------------------------------------------------------


def test_every_single_byte_change_is_detected(
    built: Built, tmp_path: Path, refused: Callable[[Path], PacketError]
) -> None:
    data = built.path.read_bytes()
    random_ = random.Random(20260101)
    path = tmp_path / "changed.rep.zip"
    for _ in range(400):
        place, bits = random_.randrange(len(data)), random_.randrange(1, 256)
        changed = bytearray(data)
        changed[place] ^= bits
        path.write_bytes(bytes(changed))
        assert refused(path).code, place


def test_every_single_byte_change_of_content_with_a_mended_checksum(
    members: Any, tmp_path: Path, refused: Callable[[Path], PacketError]
) -> None:
    """As a forger would who mends the zip's checksums but has no manifest of his own."""
    random_ = random.Random(5)
    names = sorted(members.files)
    original = dict(members.files)
    for _ in range(150):
        name = random_.choice(names)
        if not original[name]:
            continue
        content = bytearray(original[name])
        content[random_.randrange(len(content))] ^= random_.randrange(1, 256)
        members.files = {**original, name: bytes(content)}
        assert members.refusal(honest_manifest=False).code


# -- memory -------------------------------------------------------------------------------------------------

_MEMORY = """
import resource, sys
from pathlib import Path
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.verify import Verification, verify
try:
    with Archive.open(Path(sys.argv[1])) as opened:
        verify(opened, Verification())
    code = "passed"
except PacketError as error:
    code = error.code
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_a_large_packet_is_verified_in_bounded_memory(built: Built, members: Any) -> None:
    """100 MiB of honest requests in one block: read line by line."""
    row = json.loads(members.files[INPUT].splitlines()[0])
    row["stop"] = ["x" * 14_000]
    target = members.folder / INPUT.replace("/", "_")
    count = 7_500
    line = dump({**row, "request_index": "INDEX"})
    with target.open("wb") as out:
        for index in range(count):
            out.write(line.replace(b'"INDEX"', str(index).encode()))
    assert target.stat().st_size > 100 << 20
    edit(members, layout.PACKET, lambda d: d.update(requests=[count, *d["requests"][1:]]))
    files: dict[str, Any] = {**members.files, INPUT: target}
    del files["MANIFEST.jsonl"]
    files["MANIFEST.jsonl"] = manifest.build(files)
    path = members.folder / "large.rep.zip"
    archive.write(path, files)
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(path)], capture_output=True, text=True, timeout=200, check=True
    )
    code, peak = done.stdout.split()
    assert code == "E_ROWS", "the author's rows are for the original number of requests"
    assert int(peak) < 300
