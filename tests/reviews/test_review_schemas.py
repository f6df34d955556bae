"""JSON Schemas: they follow from the reader's shapes, real files pass them, and changed ones do not."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from counterproof.cli import main
from counterproof.record import atomic
from counterproof_review.challenge import declared
from counterproof_review.packet import layout
from counterproof_review.packet.build import Built, build
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.sealing import Sealing, Secrets
from counterproof_review.protocol import folder, outcome, reviewer_steps
from counterproof_review.schema import catalogue, kinds, packet_files, review_files
from counterproof_review.trust import keys, seal

SECRETS = Secrets(bytes(range(1, 33)))


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(catalogue.text(name)))


def refusals(name: str, value: Any) -> list[str]:
    return [error.message for error in validator(name).iter_errors(value)]


@pytest.mark.parametrize("name", catalogue.names())
def test_what_is_shipped_is_a_schema_and_follows_from_the_shapes(name: str) -> None:
    text = catalogue.text(name)
    Draft202012Validator.check_schema(json.loads(text))
    again = "write it anew: python -m counterproof_review.schema.catalogue"
    assert text == catalogue.render(catalogue.made(name)), again


def test_no_schema_is_shipped_that_nothing_describes() -> None:
    folder = Path(catalogue.__file__).parents[1] / catalogue.FOLDER
    assert {p.name for p in folder.iterdir()} == {n + catalogue.SUFFIX for n in catalogue.names()}


def test_something_that_is_no_shape_has_no_schema() -> None:
    with pytest.raises(TypeError, match="is no shape"):
        kinds.compile_shape("text")


# -- every value that a schema can refuse -----------------------------------------------------------------


def wrong(value: Any) -> Any:
    """A value of another type than `value`."""
    return {"x": 1} if isinstance(value, str | int | float | list | bool | type(None)) else "x"


def mutations(value: Any) -> Iterator[tuple[str, Any]]:
    """The value without each of its keys, and with each of its values of another type, one at a time, three deep."""
    for where, holder, key in places(value, 3):
        kept = holder[key]
        holder[key] = wrong(kept)
        yield f"type of {where}", json.loads(json.dumps(value))
        if isinstance(holder, dict):
            del holder[key]
            yield f"no {where}", json.loads(json.dumps(value))
        holder[key] = kept


def places(value: Any, depth: int, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    entries = list(value.items()) if isinstance(value, dict) else list(enumerate(value))[:1]
    for key, inner in entries:
        yield f"{where}/{key}", value, key
        if depth > 1 and isinstance(inner, dict | list):
            yield from places(inner, depth - 1, f"{where}/{key}")


def closed(value: Any) -> Any:
    """A schema that takes no field that it does not list, wherever it lists any."""
    if isinstance(value, list):
        return [closed(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {key: closed(inner) for key, inner in value.items()}
    return made | {"additionalProperties": False} if value.get("properties") else made


def unlisted(name: str, value: Any) -> list[str]:
    """What a real value holds that its schema does not name."""
    held = Draft202012Validator(closed(json.loads(catalogue.text(name))))
    return [error.message for error in held.iter_errors(value)]


def check_both_ways(name: str, value: Any, least: int) -> None:
    """The real value passes; of its mutations at least `least` are refused, and all that drop a required key."""
    held = validator(name)
    assert not refusals(name, value), (name, refusals(name, value)[:3])
    required = set(json.loads(catalogue.text(name)).get("required", ()))
    caught = 0
    for what, changed in mutations(json.loads(json.dumps(value))):
        refused = not held.is_valid(changed)
        caught += refused
        if what.startswith("no /") and what.removeprefix("no /") in required:
            assert refused, (name, what)
    assert caught >= least, (name, caught)


# -- packets ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parties(parties_module: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return parties_module.Parties(tmp_path_factory.mktemp("homes"))


@pytest.fixture(scope="module")
def sealed(study: Path, parties: Any, tmp_path_factory: pytest.TempPathFactory) -> Built:
    steward = parties.keys["steward"]
    made = Sealing(SECRETS, parties.keys["author"], {steward.key_id: steward.seal_public})
    with parties.of("author"):
        return build(study, out=tmp_path_factory.mktemp("p") / "p.rep.zip", sealed=made)


def members_of(packet: Path) -> Iterator[tuple[str, str, Any]]:
    """(path, schema, value) of everything in a packet that a schema is about."""
    with Archive.open(packet) as archive:
        for path in archive.members:
            name = "envelope" if path == layout.SIGNATURE else packet_files.name_of(path)
            if name is None:
                assert path == layout.RESULT_ROWS
                continue
            data = archive.read(path, 1 << 30)
            for line in data.splitlines() if path.endswith(".jsonl") else [data]:
                yield path, name, json.loads(line)


def test_files_of_both_forms_of_packets(built: Built, sealed: Built) -> None:
    seen = set()
    for packet in (built.path, sealed.path):
        for path, name, value in members_of(packet):
            if name in seen:
                assert not refusals(name, value), path
                continue
            seen.add(name)
            check_both_ways(name, value, least=2)
    missing = set(packet_files.shapes()) - seen - {"sealed-content", "packet-keys"}
    assert not missing


def test_what_is_inside_signature_and_seal(built: Built, sealed: Built) -> None:
    with Archive.open(sealed.path) as archive:
        envelope = json.loads(archive.read(layout.SIGNATURE, 1 << 20))
        document = archive.read(layout.SEALED, 1 << 30)
    statement = payload(envelope)
    check_both_ways("statement", statement, least=6)
    check_both_ways("packet-signature", statement["predicate"], least=8)
    opened = json.loads(seal.open_seal(document, sealed.packet_id, SECRETS.seal))
    check_both_ways("sealed-content", opened, least=20)
    check_both_ways("packet-keys", json.loads(built.key_path.read_text()), least=8)


def payload(envelope: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return value


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("packet", ("claim_id",), "0" * 63),
        ("packet", ("schema",), "replication-packet/2"),
        ("prereg", ("consistency_band",), 0.5),
        ("prereg", ("min_blocks",), 1),
        ("run-lock", ("target",), "os.system('x')"),
        ("run-lock", ("executor",), "/bin/sh -c true"),
        ("arm", ("engine", "kv_cache.enabled"), {"_target_": "builtins.exec"}),
        ("arm", ("extra",), 1),
        ("request", ("token_ids", 0), -1),
        ("manifest-line", ("path",), "../out"[:2] + "\\x"),
    ],
)
def test_values_that_a_reader_refuses_are_refused_by_the_schema(
    built: Built, name: str, path: tuple[Any, ...], value: Any
) -> None:
    real = next(v for _, n, v in members_of(built.path) if n == name)
    holder = real
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    assert refusals(name, real)


# -- keys and commands ------------------------------------------------------------------------------------


def test_keys_and_registry(parties: Any) -> None:
    with parties.of("author"):
        file = keys.folder() / f"key-of-author{keys.SUFFIX}"
        check_both_ways("private-key", json.loads(file.read_text()), least=8)
    check_both_ways("public-key", parties.keys["author"].public(), least=8)
    envelope = json.loads(parties.registry.read_text())
    check_both_ways("envelope", envelope, least=8)
    check_both_ways("registry", payload(envelope)["predicate"], least=6)


def test_the_command_lists_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packet", "schema"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in catalogue.names())
    assert main(["packet", "schema", "verdict"]) == 0
    assert json.loads(capsys.readouterr().out)["$id"] == "urn:counterproof:schema:verdict"
    assert main(["packet", "schema", "--out", str(tmp_path / "s")]) == 0
    assert len(list((tmp_path / "s").iterdir())) == len(catalogue.names())
    assert main(["packet", "schema", "nothing"]) == 2
    assert main(["packet", "schema", "verdict", "--out", str(tmp_path / "s")]) == 2


# -- every kind of entry that the code writes ---------------------------------------------------------------


def test_ledgers_verdict_and_attempt_of_a_review(reviewed: Any) -> None:
    seen = set()
    for file in sorted((reviewed.folder / "ledgers").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            envelope = json.loads(line)
            assert not refusals("envelope", envelope)
            statement = payload(envelope)
            assert not refusals("statement", statement)
            entry = statement["predicate"]
            assert not refusals("ledger-entry", entry)
            check_both_ways(f"ledger-{entry['kind']}", entry["body"], least=2)
            assert not unlisted(f"ledger-{entry['kind']}", entry["body"])
            seen.add(entry["kind"])
    assert seen == set(review_files.BODIES) - {"lost"}
    assert not refusals("ledger-lost", {"reason": "gone"})
    assert refusals("ledger-lost", {})
    check_both_ways("verdict", json.loads((reviewed.folder / "verdict.json").read_text()), least=30)
    check_both_ways("search-report", json.loads((reviewed.folder / "challenge.json").read_text()), least=8)
    (estimates,) = reviewed.folder.glob("attempts/*/estimates.json")
    check_both_ways("attempt", json.loads(estimates.read_text()), least=10)


CELL: dict[str, Any] = {"prompt_tokens": 16, "output_tokens": 6, "concurrency": 1}


@pytest.mark.parametrize("needed", ["concurrency", "entropy"])
def test_a_counterexample_in_the_scope_is_entered_with_what_it_leaves(needed: str, reviewed: Any) -> None:
    """The statement as `review challenge` makes it; every field of it stands in the schema."""
    with reviewed.parties.of("reviewer"):
        review = folder.read(reviewed.folder)
    scope = outcome.packet_of(review, review.state.issues[-1].body["packet_id"]).documents[layout.SCOPE]
    cell = {**CELL, "concurrency": scope["concurrency"]}
    left = declared.cut(scope, [cell], [needed])
    one = {"cell": cell, "flip": True, "left_of_scope": left, "inside": True, "needed": [needed]}
    report = {"confirmed": [one], "cells_tried": 3, "corners_not_tried": 0, "says": "1 confirmed in 3 cells"}
    entered: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            folder, "enter", lambda _review, _key, _role, _kind, body, _subjects: entered.append(body)
        )
        patch.setattr(atomic, "write_bytes", lambda _path, _data: None)
        reviewer_steps.challenge(review, reviewed.parties.keys["reviewer"], report, "")
    (body,) = entered
    assert (body["inside"], body["left_of_scope"]) == (1, [left])
    assert not unlisted("ledger-challenge", body) and not unlisted("search-report", report)
    assert unlisted("ledger-challenge", {**body, "more": 1})
    assert refusals("ledger-challenge", {**body, "left_of_scope": [{"concurrency": 1}]})
    assert refusals("search-report", {**report, "confirmed": [{**one, "left_of_scope": "all of it"}]})
