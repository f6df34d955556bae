"""A packet that was changed, cut, stretched or forged, each refused with its own code."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterproof.errors import EXIT_INVALID
from counterproof_review.packet import layout, tables
from counterproof_review.packet.build import Built
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.verify import Verification

ARM = "replay/arms/"
INPUT = "replay/inputs/block-00.jsonl"


def an_arm(members: Any) -> str:
    return min(path for path in members.files if path.startswith(ARM))


# -- what is right ----------------------------------------------------------------------------------------


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


# -- the closed world -------------------------------------------------------------------------------------


def test_tampered_byte(members: Any) -> None:
    """A same-size edit whose CRC-32 was fixed up: only the manifest's digest tells."""
    members.files[INPUT] = members.files[INPUT].replace(b'"max_new_tokens":6', b'"max_new_tokens":7', 1)
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
    files["MANIFEST.jsonl"] = b"".join(
        members.dump(row) for row in sorted(rows, key=lambda r: str(r["path"]))
    )
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
        frame.loc[(frame["arm"] == first) & (frame["block"] == 2), "last_token_ns"] -= 5_000_000
        return frame

    rewrite_rows(members, faster)
    assert "do not follow" in str(members.refusal())


def test_ratios_that_do_not_follow_from_the_summaries(members: Any) -> None:
    def inflate(document: dict[str, Any]) -> None:
        document["log_ratios"]["candidate"] = [v * 1.5 for v in document["log_ratios"]["candidate"]]

    members.edit(layout.RESULTS, inflate)
    error = members.refusal()
    assert (error.code, error.exit_code) == ("E_ROWS", EXIT_INVALID)


def rewrite_rows(members: Any, change: Callable[[Any], Any]) -> None:
    frame = pq.read_table(io.BytesIO(members.files[layout.RESULT_ROWS])).to_pandas()
    table = pa.Table.from_pandas(change(frame), schema=tables.RESULT_ROWS, preserve_index=False)
    sink = io.BytesIO()
    tables.write(table, sink)
    members.files[layout.RESULT_ROWS] = sink.getvalue()


OPEN_PLACES = [place for place in layout.PLACES if place.form in ("", layout.OPEN)]


@pytest.mark.parametrize("path", sorted(place.name for place in OPEN_PLACES if "<" not in place.name))
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


# -- arms and models --------------------------------------------------------------------------------------


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
    members.edit(an_arm(members), lambda document: document["engine"].update(change))
    assert members.refusal().code == code


def test_arm_with_another_set_of_keys(members: Any) -> None:
    members.edit(an_arm(members), lambda document: document["engine"].pop("dtype"))
    assert members.refusal().code == "E_ARMS"


def test_arm_with_something_beside_the_engine(members: Any) -> None:
    members.edit(an_arm(members), lambda document: document.update(argv=["sh", "-c", "true"]))
    assert members.refusal().code == "E_SCHEMA"


@pytest.mark.parametrize(
    "name", ["../../evil.json", "/etc/x.json", "a/b.safetensors", "model.bin", "run.py", ".x.json"]
)
def test_model_file_with_an_unsafe_name(members: Any, name: str) -> None:
    members.edit(layout.MODELS_LOCK, lambda document: document["models"][0]["files"][0].update(name=name))
    assert members.refusal().code == "E_UNSAFE"


def test_arms_that_the_results_do_not_map(members: Any) -> None:
    members.edit(layout.RESULTS, lambda document: document["arms"].update(baseline="00000000"))
    assert members.refusal().code == "E_ARMS"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda d: d["arms"].pop("slowed"), "E_ARMS"),
        (lambda d: d["log_ratios"].pop("again"), "E_ROWS"),
        (lambda d: d["runs"].pop(), "E_ROWS"),
        (lambda d: d["runs"][0]["outputs_sha256"].pop(), "E_ROWS"),
        (lambda d: d["per_block"].popitem(), "E_ROWS"),
        (lambda d: d.update(rows=1), "E_ROWS"),
    ],
)
def test_results_with_something_missing(
    members: Any, change: Callable[[dict[str, Any]], Any], code: str
) -> None:
    members.edit(layout.RESULTS, change)
    assert members.refusal().code == code


def test_another_executor_or_order_rule_needs_another_reader(members: Any) -> None:
    members.edit(layout.RUN_LOCK, lambda document: document.update(executor="counterproof-run/2"))
    assert members.refusal().code == "E_SCHEMA_NEWER"
