"""Changed bytes where nobody told the reader a root, in bundles, in results, and at every single place of small files."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof.errors import CounterproofError
from counterproof_review.packet import archive as container
from counterproof_review.packet import layout
from counterproof_review.packet.build import Built, build
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.sealing import Sealing, Secrets
from counterproof_review.packet.verify import Verification, verify
from counterproof_review.protocol import bundle, lookup
from counterproof_review.protocol import folder as folders
from counterproof_review.trust import dsse, registry

# The whole claim is 10,000; a suite that runs often takes a sample.
ROUNDS = int(os.environ.get("COUNTERPROOF_TAMPER_ROUNDS", "300"))


@pytest.fixture(scope="module")
def parties(parties_module: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return parties_module.Parties(tmp_path_factory.mktemp("homes"))


@pytest.fixture(scope="module")
def sealed(study: Path, parties: Any, tmp_path_factory: pytest.TempPathFactory) -> Built:
    steward = parties.keys["steward"]
    made = Sealing(
        Secrets(bytes(range(1, 33))), parties.keys["author"], {steward.key_id: steward.seal_public}
    )
    with parties.of("author"):
        return build(study, out=tmp_path_factory.mktemp("p") / "p.rep.zip", sealed=made)


def unseen(data: bytes, check: Callable[[bytes], object], places: list[int]) -> list[int]:
    """The places at which a changed byte passes `check`; the unchanged data must pass."""
    check(data)
    rng = random.Random(11)
    passed = []
    for place in places:
        changed = bytes([data[place] ^ rng.randrange(1, 256)])
        try:
            check(data[:place] + changed + data[place + 1 :])
        except CounterproofError:
            continue
        passed.append(place)
    return passed


def some(data: bytes, rounds: int = ROUNDS) -> list[int]:
    rng = random.Random(7)
    return [rng.randrange(len(data)) for _ in range(rounds)]


def whole(data: bytes) -> None:
    verify(Archive(io.BytesIO(data)), Verification())


def test_a_packet_whose_root_nobody_told(built: Built, sealed: Built) -> None:
    """Open: every byte hangs on the manifest, and the manifest on them. Sealed: on the signature as well."""
    for packet in (built, sealed):
        data = packet.path.read_bytes()
        assert unseen(data, whole, some(data)) == []


def test_every_byte_of_an_envelope_and_of_a_registry(parties: Any, sealed: Built) -> None:
    data = parties.registry.read_bytes()
    steward = parties.keys["steward"].key_id
    assert unseen(data, lambda changed: registry.read(changed, steward), list(range(len(data)))) == []
    with Archive.open(sealed.path) as archive:
        envelope = archive.read(layout.SIGNATURE, 1 << 20)
    author = parties.keys["author"]
    known = {author.key_id: author.sign_public}
    assert unseen(envelope, lambda changed: dsse.verify(changed, known), list(range(len(envelope)))) == []


def test_every_byte_of_headers_and_directory(sealed: Built) -> None:
    """No place between, before or after the members' content is free to carry anything."""
    data = sealed.path.read_bytes()
    with Archive.open(sealed.path) as archive:
        inside = {
            place
            for member in archive.members.values()
            for place in range(member.data_offset, member.data_offset + member.size)
        }
    places = [place for place in range(len(data)) if place not in inside]
    assert len(places) > 2000
    assert (
        unseen(data, lambda changed: Archive(io.BytesIO(changed)), places[:: max(1, len(places) // 1500)])
        == []
    )


def test_a_changed_ledger_or_registry_in_a_bundle(reviewed: Any, tmp_path: Path) -> None:
    """Also when a forger mends the checksums of the zip."""
    bundle.write(reviewed.folder, tmp_path / "b.zip")
    data = (tmp_path / "b.zip").read_bytes()
    with Archive(io.BytesIO(data)) as archive:
        signed = [m for n, m in archive.members.items() if n.startswith("ledgers/") or n == folders.REGISTRY]
    rng = random.Random(3)
    places = [p for m in signed for p in rng.sample(range(m.data_offset, m.end), min(m.size, ROUNDS // 20))]

    def taken(changed: bytes) -> None:
        place = tmp_path / "r"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        (tmp_path / "b.zip").write_bytes(mended(changed))
        bundle.merge(place, tmp_path / "b.zip")

    with reviewed.parties.of("reviewer"):
        assert unseen(data, taken, places) == []


def mended(data: bytes) -> bytes:
    """The zip with checksums that fit again."""
    opened = Archive(io.BytesIO(data))
    files = {n: data[m.data_offset : m.end] for n, m in opened.members.items()}
    return b"".join(container._packet(files))


def test_a_changed_result_of_a_review_is_seen_when_it_is_used(reviewed: Any, tmp_path: Path) -> None:
    place = tmp_path / lookup.NAME
    shutil.copytree(reviewed.folder, place)
    shutil.copy(reviewed.study / "plan.json", tmp_path)
    last = json.loads((place / folders.VERDICT).read_text())["packet_id"]
    with reviewed.parties.of("author"):
        for path in (place / folders.VERDICT, place / "packets" / f"{last}.rep.zip"):
            data = path.read_bytes()

            def used(changed: bytes, path: Path = path) -> None:
                path.write_bytes(changed)
                lookup.standing_of(tmp_path)

            assert unseen(data, used, some(data, ROUNDS // 15)) == [], path.name
            path.write_bytes(data)


# -- one content, one encoding ------------------------------------------------------------------------------


def spellings(envelope: bytes) -> dict[str, bytes]:
    """The same envelope, written otherwise."""
    value = json.loads(envelope)
    payload, first = value["payload"], value["signatures"][0]
    compact: dict[str, Any] = {"separators": (",", ":"), "sort_keys": True}

    def text(changed: dict[str, Any]) -> bytes:
        return json.dumps(changed, **compact).encode() + b"\n"

    return {
        "white space": json.dumps(value, sort_keys=True).encode() + b"\n",
        "another order": text(value).replace(b'{"payload":', b'{"signatures":[],"payload":', 1),
        "keys turned around": json.dumps(dict(reversed(value.items())), separators=(",", ":")).encode()
        + b"\n",
        "no newline": envelope.rstrip(b"\n"),
        "two newlines": envelope + b"\n",
        "carriage return": envelope.replace(b"\n", b"\r\n"),
        "byte order mark": b"\xef\xbb\xbf" + envelope,
        "escaped letter": envelope.replace(b"payloadType", b"payload\\u0054ype"),
        "escaped slash": envelope.replace(b"application/", b"application\\/"),
        "key twice": envelope.replace(b'{"payload":', b'{"payload":"","payload":', 1),
        "one more field": text({**value, "comment": ""}),
        "one more field of a signature": text({**value, "signatures": [{**first, "cert": ""}]}),
        "signature twice": text({**value, "signatures": [first, first]}),
        "no signature": text({**value, "signatures": []}),
        "key id in capitals": text({**value, "signatures": [{**first, "keyid": first["keyid"].upper()}]}),
        "base64 without padding": text({**value, "payload": payload.rstrip("=")}),
        "base64 with a line end": text({**value, "payload": payload[:40] + "\n" + payload[40:]}),
        "base64 with a blank": text({**value, "payload": payload + " "}),
        "base64 with more padding": text({**value, "payload": payload + "===="}),
        "idle bits of base64": text({**value, "signatures": [{**first, "sig": idle_bits(first["sig"])}]}),
        "base64 of the web": text(
            {**value, "signatures": [{**first, "sig": first["sig"].replace("+", "-").replace("/", "_")}]}
        ),
    }


def idle_bits(text: str) -> str:
    """The same bytes with other unused bits: 64 bytes leave four of them in the last digit."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    digits = text.rstrip("=")
    return digits[:-1] + alphabet[alphabet.index(digits[-1]) ^ 1] + "=" * (len(text) - len(digits))


def test_every_other_spelling_of_an_envelope_is_refused(parties: Any) -> None:
    author = parties.keys["author"]
    known = {author.key_id: author.sign_public}
    # Until the signature has a digit that the alphabet of the web spells otherwise.
    for number in range(200):
        content = dsse.statement("urn:x", {"a": "0" * 64}, {"n": number})
        envelope = dsse.sign(content, [author.sign])
        signature = json.loads(envelope)["signatures"][0]["sig"]
        if ("+" in signature or "/" in signature) and "=" in json.loads(envelope)["payload"]:
            break
    assert dsse.verify(envelope, known).predicate == {"n": number}
    passed = []
    for name, changed in spellings(envelope).items():
        assert changed != envelope, name
        try:
            dsse.verify(changed, known)
        except CounterproofError:
            continue
        passed.append(name)
    assert passed == []
