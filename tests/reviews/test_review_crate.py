"""RO-Crate metadata of packets, reviews and studies, held to our own rules: root, descriptor, parts, unique ids, digests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof.cli import main
from counterproof.errors import InputError
from counterproof_review.crate import check, graph, sources
from counterproof_review.packet.build import Built
from counterproof_review.packet.reader import Archive


@pytest.fixture
def crate(built: Built, tmp_path: Path) -> Path:
    target = tmp_path / "crate"
    assert main(["packet", "export-crate", str(built.path), str(target), "--date", "2026-01-02"]) == 0
    return target


def entities(folder: Path) -> dict[str, Any]:
    graph_of = json.loads((folder / graph.METADATA).read_text())["@graph"]
    return {entity["@id"]: entity for entity in graph_of}


def test_every_member_of_a_packet_is_a_part_with_its_digest(crate: Path, built: Built) -> None:
    assert check.faults(crate) == []
    found = entities(crate)
    with Archive.open(built.path) as archive:
        parts = [part["@id"] for part in found[graph.ROOT]["hasPart"]]
        assert sorted(parts) == sorted(archive.members)
        for name in archive.members:
            assert (crate / name).read_bytes() == archive.read(name, 1 << 30)
            assert found[name]["sha256"] == archive.sha256(name)
    assert found["protocol/prereg.json"]["conformsTo"] == {"@id": "urn:counterproof:schema:prereg"}
    assert found["results/requests.parquet"]["encodingFormat"] == "application/vnd.apache.parquet"
    assert found[graph.ROOT]["datePublished"] == "2026-01-02"
    assert found[graph.CLAIM]["identifier"] == f"sha256:{built.verification.packet['claim_id']}"
    assert found[graph.VERDICT]["name"] == "NO_REVIEW"


def test_one_packet_gives_one_metadata_file(built: Built) -> None:
    first, second = (graph.document(sources.read(built.path), "2026-01-02") for _ in range(2))
    assert first == second


def test_a_review_names_its_verdict_its_people_and_its_ledgers(reviewed: Any, tmp_path: Path) -> None:
    target = tmp_path / "crate"
    arguments = ["packet", "export-crate", reviewed.folder, target, "--license", "https://a.example/l"]
    assert reviewed.parties.do("steward", *arguments) == 0
    assert check.faults(target) == []
    found = entities(target)
    signed = json.loads((reviewed.folder / "verdict.json").read_text())
    assert found[graph.VERDICT]["name"] == found["#verdict-value"]["ratingValue"] == signed["verdict"]
    assert found["#verdict-level"]["value"] == "L1"
    signers = {one["@id"] for one in found[graph.VERDICT]["author"]}
    keys = reviewed.parties.keys
    assert signers == {f"#key-{keys[role].key_id[:16]}" for role in ("reviewer", "steward")}
    assert "ledgers/reviewer.jsonl" in found
    assert found["verdict.json"]["conformsTo"] == {"@id": "urn:counterproof:schema:verdict"}
    assert found[graph.ROOT]["license"] == {"@id": "https://a.example/l"}
    assert not any("attempts" in name for name in found)


def test_a_study_leaves_packets_and_keys_behind(study: Path, tmp_path: Path) -> None:
    (study / "packets").mkdir(exist_ok=True)
    (study / "packets" / "1.key.json").write_text("{}")
    target = tmp_path / "crate"
    assert main(["packet", "export-crate", str(study), str(target)]) == 0
    assert check.faults(target) == []
    assert (target / "plan.json").read_bytes() == (study / "plan.json").read_bytes()
    assert not (target / "packets").exists()


def test_a_changed_packet_gets_no_crate(members: Any, tmp_path: Path) -> None:
    members.files["noise/noise.json"] = members.files["noise/noise.json"].replace(b'"n":', b'"n": ')
    assert main(["packet", "export-crate", str(members.pack()), str(tmp_path / "crate")]) == 2
    assert not (tmp_path / "crate").exists()


def test_what_is_no_source_and_what_is_no_place(built: Built, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no packet"):
        sources.read(tmp_path)
    (tmp_path / "x").write_text("")
    assert main(["packet", "export-crate", str(built.path), str(tmp_path)]) == 2
    assert main(["packet", "export-crate", str(built.path), str(tmp_path / "c"), "--date", "today"]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def edited(name: str, **fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        document = json.loads((folder / graph.METADATA).read_text())
        for entity in document["@graph"]:
            if entity["@id"] == name:
                entity.update(fields)
        (folder / graph.METADATA).write_text(json.dumps(document))

    return change


def dropped(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        document = json.loads((folder / graph.METADATA).read_text())
        document["@graph"] = [one for one in document["@graph"] if one["@id"] != name]
        (folder / graph.METADATA).write_text(json.dumps(document))

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dropped(graph.ROOT), "root"),
        (dropped(graph.METADATA), "descriptor"),
        (dropped(graph.CLAIM), "#claim is named but not described"),
        (dropped("noise/noise.json"), "not described"),
        (edited("noise/noise.json", sha256="0" * 64), "SHA-256"),
        (edited("noise/noise.json", contentSize="1"), "size"),
        (edited("noise/noise.json", encodingFormat=""), "encodingFormat"),
        (edited(graph.ROOT, datePublished=""), "datePublished"),
        (edited(graph.CLAIM, **{"@id": graph.VERDICT}), "same @id"),
        (edited("noise/noise.json", **{"@id": "../outside.json"}), "not"),
        (lambda folder: (folder / "noise/noise.json").unlink(), "not in the crate"),
        (lambda folder: (folder / "more.txt").write_text("x"), "not part"),
        (lambda folder: (folder / graph.METADATA).write_text("{"), "cannot be read"),
        (lambda folder: (folder / graph.METADATA).write_text("[]"), "@graph"),
    ],
)
def test_the_check_sees_what_is_wrong(crate: Path, change: Callable[[Path], None], says: str) -> None:
    change(crate)
    assert any(says in fault for fault in check.faults(crate)), check.faults(crate)
