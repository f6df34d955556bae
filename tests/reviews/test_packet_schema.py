"""Schemas, newer readers, strict JSON in every document, and documents of any shape."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from counterproof.errors import EXIT_SETUP
from counterproof_review.packet import layout
from counterproof_review.packet import reader as archive_reader
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.verify import Verification, verify

FUZZ_ROUNDS = 200
INPUT = "replay/inputs/block-00.jsonl"


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "replication-packet/2"},
        {"schema": "replication-packet/17"},
        {"critical": ["open-results", "sealed-results-2"]},
        {"critical": ["signatures"]},
    ],
)
def test_newer_schema(members: Any, change: dict[str, Any]) -> None:
    """Refused before anything else of the packet is read: here everything else is broken."""
    members.edit(layout.PACKET, lambda document: document.update(change))
    members.files[layout.PREREG] = b"not JSON at all"
    error = members.refusal()
    assert (error.code, error.exit_code) == ("E_SCHEMA_NEWER", EXIT_SETUP)


@pytest.mark.parametrize("schema", ["replication-packet/0", "replication-packet/", "packet/1", "", 1, None])
def test_no_schema_of_ours(members: Any, schema: object) -> None:
    members.edit(layout.PACKET, lambda document: document.update(schema=schema))
    assert members.refusal().code == "E_SCHEMA"


def test_unknown_field_is_a_warning_and_survives(
    members: Any, verify_file: Callable[..., Verification]
) -> None:
    members.edit(layout.PREREG, lambda document: document.update(season=4))
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
        members.edit(path, change)
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


def leaves(value: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a document, containers included."""
    found = [where] if where else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += leaves(item, (*where, key))
    return found


def test_documents_of_any_shape_are_refused_or_read_but_never_crash(members: Any) -> None:
    """A forger with a manifest of his own: any place in any document gets any kind of value, or is taken out."""
    random_ = random.Random(11)
    original = dict(members.files)
    names = sorted(n for n in original if n.endswith(".json"))
    values: list[Any] = [
        None,
        True,
        -1,
        0,
        10**9,
        1e308,
        "",
        "x",
        [],
        {},
        [[]],
        [{}],
        {"a": []},
        "sha256:",
        "../x",
    ]
    refused_count = 0
    for _ in range(FUZZ_ROUNDS):
        name = random_.choice(names)
        document = json.loads(original[name])
        place = random_.choice(leaves(document))
        target = document
        for step in place[:-1]:
            target = target[step]
        if random_.random() < 0.2:
            del target[place[-1]]
        else:
            target[place[-1]] = random_.choice(values)
        members.files = {**original, name: members.dump(document)}
        path = members.pack()
        try:
            with archive_reader.Archive.open(path) as opened:
                verify(opened, Verification())
        except PacketError:
            refused_count += 1
    assert refused_count > FUZZ_ROUNDS // 3
