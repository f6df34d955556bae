"""Single bytes changed at random in packet, seal, ledger and registry are all seen; and nothing in a packet ever runs."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof.errors import CounterproofError
from counterproof_review.packet import archive, layout, manifest
from counterproof_review.packet.build import Built, build
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.sealing import Sealing, Secrets
from counterproof_review.packet.verify import Verification, verify
from counterproof_review.protocol import bundle
from counterproof_review.protocol import folder as folders
from counterproof_review.trust import ledger, registry, seal
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.ledger import Ledger

# The whole claim is 10,000; a suite that runs often takes a sample.
ROUNDS = int(os.environ.get("COUNTERPROOF_TAMPER_ROUNDS", "400"))
SECRETS = Secrets(bytes(range(1, 33)))


@pytest.fixture(scope="module")
def parties(parties_module: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return parties_module.Parties(tmp_path_factory.mktemp("homes"))


@pytest.fixture(scope="module")
def sealed(study: Path, parties: Any, tmp_path_factory: pytest.TempPathFactory) -> Built:
    steward = parties.keys["steward"]
    made = Sealing(SECRETS, parties.keys["author"], {steward.key_id: steward.seal_public})
    with parties.of("author"):
        return build(study, out=tmp_path_factory.mktemp("p") / "p.rep.zip", sealed=made)


@pytest.fixture(scope="module")
def written(parties: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, registry.Registry]:
    """A ledger of a few entries and the registry that it is read by."""
    known = registry.read(parties.registry.read_bytes(), parties.keys["steward"].key_id)
    file = Ledger(tmp_path_factory.mktemp("l") / "author.jsonl")
    for number in range(6):
        key = parties.keys["author"]
        file.append(known, key, "author", "prereg", {"n": number, "text": "é"}, {"x": "0" * 64})
    return file.path.read_bytes(), known


def flipped(data: bytes, rng: random.Random) -> bytes:
    """The same bytes with one of them changed."""
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ rng.randrange(1, 256)]) + data[place + 1 :]


def unseen(data: bytes, check: Callable[[bytes], object], rounds: int = ROUNDS) -> int:
    """How many of so many random changes of one byte `check` lets pass."""
    check(data)
    rng = random.Random(5)
    passed = 0
    for _ in range(rounds):
        try:
            check(flipped(data, rng))
        except CounterproofError:
            continue
        passed += 1
    return passed


def test_a_changed_byte_of_a_packet(sealed: Built) -> None:
    def check(data: bytes) -> None:
        verify(Archive(io.BytesIO(data)), Verification(), root=sealed.root)

    assert unseen(sealed.path.read_bytes(), check) == 0


def test_a_changed_byte_of_a_packets_seal_and_signature(sealed: Built) -> None:
    """The two members that no manifest line protects alone, and the digest that a forger would mend with them."""
    with Archive.open(sealed.path) as opened:
        files = {name: opened.read(name, 1 << 30) for name in opened.members}

    def check(data: bytes) -> None:
        changed = {**files, layout.SIGNATURE: data}
        verify(Archive(io.BytesIO(zipped(changed))), Verification())

    assert unseen(files[layout.SIGNATURE], check, ROUNDS // 4) == 0


def zipped(files: dict[str, bytes]) -> bytes:
    return b"".join(archive._packet(files))


def test_a_changed_byte_of_a_seal(sealed: Built) -> None:
    with Archive.open(sealed.path) as opened:
        document = opened.read(layout.SEALED, layout.MAX_JSON_BYTES)
    plain = seal.open_seal(document, sealed.packet_id, SECRETS.seal)

    def check(data: bytes) -> None:
        # The escrow's boxes are no part of what the author opens; the packet's signature covers them.
        if seal.open_seal(data, sealed.packet_id, SECRETS.seal) == plain and _boxes(data) != _boxes(document):
            raise TrustError("E_COMMIT", "the boxes were changed")

    assert unseen(document, check) == 0


def _boxes(document: bytes) -> Any:
    import json

    return json.loads(document)["escrow"]


def test_a_changed_byte_of_a_ledger(written: tuple[bytes, registry.Registry]) -> None:
    data, known = written
    assert unseen(data, lambda changed: ledger.verify(changed, known)) == 0


def test_a_changed_byte_of_a_registry(parties: Any) -> None:
    steward = parties.keys["steward"].key_id
    assert unseen(parties.registry.read_bytes(), lambda changed: registry.read(changed, steward)) == 0


def test_a_check_that_looks_at_nothing_would_be_noticed() -> None:
    """The inverse: changes are made, and a reader that accepts all of them is counted."""
    assert unseen(b"0123456789", lambda _: None, 20) == 20


# -- bundles ----------------------------------------------------------------------------------------------


def review_in(place: Path, parties: Any) -> Path:
    place.mkdir(parents=True)
    (place / folders.REGISTRY).write_bytes(parties.registry.read_bytes())
    return place


def test_a_fork_in_a_bundle_is_refused_and_both_entries_are_told(parties: Any, tmp_path: Path) -> None:
    places = [review_in(tmp_path / name, parties) for name in ("one", "two")]
    for number, place in enumerate(places):
        with parties.of("author"):
            review = folders.read(place)
            Ledger(review.folder.ledger("author")).append(
                review.registry, parties.keys["author"], "author", "note", {"n": number}, {"x": "0" * 64}
            )
    bundle.write(places[0], tmp_path / "b.zip")
    with parties.of("author"), pytest.raises(TrustError, match="E_FORK") as caught:
        bundle.merge(places[1], tmp_path / "b.zip")
    assert len(caught.value.details) == 2


def test_a_ledger_that_was_cut_is_seen_against_what_others_witnessed(parties: Any, tmp_path: Path) -> None:
    place = review_in(tmp_path / "r", parties)
    with parties.of("author"):
        review = folders.read(place)
        file = Ledger(review.folder.ledger("author"))
        for number in range(3):
            file.append(
                review.registry, parties.keys["author"], "author", "note", {"n": number}, {"x": "0" * 64}
            )
        review = folders.read(place)
        folders.witness_others(review, parties.keys["steward"], "steward")
        lines = file.path.read_bytes().splitlines(keepends=True)
        file.path.write_bytes(b"".join(lines[:2]))
        assert len(file.read(review.registry)) == 2
        with pytest.raises(TrustError, match="E_TRUNCATED"):
            folders.read(place)


@pytest.mark.parametrize(
    "name",
    ["attempts/01/estimates.json", "run.sh", "ledgers/other.jsonl", "packets/x.rep.zip", "keys/a.key.json"],
)
def test_a_bundle_brings_nothing_else(parties: Any, tmp_path: Path, name: str) -> None:
    place = review_in(tmp_path / "r", parties)
    archive.write(tmp_path / "b.zip", {name: b"{}\n"})
    with parties.of("reviewer"), pytest.raises(PacketError, match="E_EXTRA"):
        bundle.merge(place, tmp_path / "b.zip")
    assert sorted(p.name for p in place.iterdir()) == [folders.REGISTRY]


def test_a_packet_that_is_here_never_changes(parties: Any, tmp_path: Path) -> None:
    place = review_in(tmp_path / "r", parties)
    name = f"packets/{'1' * 16}.rep.zip"
    (place / "packets").mkdir()
    (place / name).write_bytes(b"first")
    archive.write(tmp_path / "b.zip", {name: b"second"})
    with parties.of("reviewer"), pytest.raises(TrustError, match="E_FORK"):
        bundle.merge(place, tmp_path / "b.zip")
    assert (place / name).read_bytes() == b"first"


# -- canaries ---------------------------------------------------------------------------------------------


def hostile(
    files: dict[str, bytes], canary: Path, kind: str, dump: Callable[[Any], bytes]
) -> dict[str, bytes]:
    """The packet with something in it that would create `canary` if it ran."""
    import json

    command = f"__import__('pathlib').Path({str(canary)!r}).write_text('ran')"
    text = b"cposix\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."
    arm = next(path for path in files if path.startswith(layout.ARMS))
    changed = dict(files)
    if kind == "target in an arm":
        document = json.loads(files[arm])
        document["engine"]["_target_"] = "builtins.eval"
        changed[arm] = dump(document)
    elif kind == "target as a value":
        document = json.loads(files[arm])
        document["engine"]["attention.backend"] = {"_target_": "builtins.exec", "_args_": [command]}
        changed[arm] = dump(document)
    elif kind == "argv":
        document = json.loads(files[layout.RUN_LOCK])
        document["executor"] = f"/bin/sh -c 'touch {canary}'"
        changed[layout.RUN_LOCK] = dump(document)
    elif kind == "target kind":
        document = json.loads(files[layout.RUN_LOCK])
        document["target"] = "os.system"
        changed[layout.RUN_LOCK] = dump(document)
    elif kind == "pickle as seal":
        changed[layout.SEALED] = text
    elif kind == "pickle as inputs":
        changed[layout.WARMUP] = text
    elif kind == "model path outside":
        document = json.loads(files[arm])
        document["engine"]["model"] = str(canary.parent)
        changed[arm] = dump(document)
    elif kind == "script":
        changed["replay/code/run.py"] = command.encode()
    return changed


KINDS = (
    "target in an arm",
    "target as a value",
    "argv",
    "target kind",
    "pickle as seal",
    "pickle as inputs",
    "model path outside",
    "script",
)


@pytest.mark.parametrize("kind", KINDS)
def test_code_in_a_packet_never_runs(
    sealed: Built, members: Any, parties: Any, tmp_path: Path, kind: str
) -> None:
    """Refused before anything is written or started, also when a forger mends manifest and signature."""
    from counterproof_review.packet import signature
    from counterproof_review.packet.replay import Options, measure

    with Archive.open(sealed.path) as opened:
        files = {name: opened.read(name, 1 << 30) for name in opened.members}
    canary = tmp_path / "canary"
    changed = hostile(files, canary, kind, members.dump)
    kept = {p: d for p, d in changed.items() if p not in (layout.MANIFEST, layout.SIGNATURE)}
    try:
        changed[layout.MANIFEST] = manifest.build(kept)
        digest = __import__("hashlib").sha256(kept[layout.PACKET]).hexdigest()
        root = manifest.root(changed[layout.MANIFEST])
        changed[layout.SIGNATURE] = signature.sign(
            parties.keys["author"], sealed.packet_id, digest, root, kept[layout.SEALED]
        )
        path = tmp_path / "hostile.rep.zip"
        archive.write(path, changed)
        with Archive.open(path) as opened, pytest.raises(CounterproofError):
            measure(opened, Options(tmp_path / "out", 1), lambda _: None, lambda _: None)
    except CounterproofError:
        assert kind in ("script", "pickle as seal")  # not even the forger's own tools write these
    assert not canary.exists()
    assert not (tmp_path / "out").exists()
