"""Keys, envelopes and the registry: one encoding, known keys, right roles; every changed byte is seen."""

from __future__ import annotations

import base64
import json
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from counterproof_review.trust import dsse, keys, registry
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair

Pairs = dict[str, KeyPair]


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pairs:
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(tmp_path / "keys"))
    return {name: keys.new(name) for name in ("author", "reviewer", "steward")}


def registry_of(pairs: Pairs) -> registry.Registry:
    people = [(pairs[role].public(), role) for role in ("author", "reviewer")]
    return registry.read(registry.create(pairs["steward"], people), pairs["steward"].key_id)


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(TrustError) as caught:
        action()
    return caught.value.code


def test_keys_are_private_files_outside_repositories(
    pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "keys"
    assert keys.names() == ["author", "reviewer", "steward"]
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    path = place / "author.key.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keys.load("author").key_id == pairs["author"].key_id
    assert code_of(lambda: keys.new("author")) == "E_KEY_NAME"
    assert code_of(lambda: keys.new("../x")) == "E_KEY_NAME"
    assert code_of(lambda: keys.load("nobody")) == "E_KEY_FILE"
    path.chmod(0o640)
    assert code_of(lambda: keys.load("author")) == "E_KEY_FILE"
    (tmp_path / ".git").mkdir()
    assert code_of(lambda: keys.new("other")) == "E_KEY_PLACE"
    assert "sign" not in repr(pairs["author"].public().values())


def test_pae_counts_bytes_and_not_characters() -> None:
    assert dsse.pae("a", "ü".encode()) == b"DSSEv1 1 a 2 \xc3\xbc"
    assert dsse.pae("", b"") == b"DSSEv1 0  0 "


def test_an_envelope_round_trips_and_is_deterministic(pairs: Pairs) -> None:
    content = dsse.statement("urn:x:1", {"b": "0" * 64, "a": "1" * 64}, {"n": 1})
    both = [pairs["author"].sign, pairs["steward"].sign]
    data = dsse.sign(content, both)
    assert data == dsse.sign(content, both[::-1])
    signed = dsse.verify(data, registry_of(pairs).keys)
    assert signed.predicate == {"n": 1}
    assert signed.subjects == {"a": "1" * 64, "b": "0" * 64}
    assert set(signed.signers) == {pairs["author"].key_id, pairs["steward"].key_id}


def test_wrong_role_and_wrong_keys_are_refused(pairs: Pairs) -> None:
    """wrong_role: unknown key, swapped key ids, one key twice, another payload type, a role it does not have."""
    known = registry_of(pairs)
    content = dsse.statement("urn:x:1", {"a": "1" * 64}, {})
    data = dsse.sign(content, [pairs["author"].sign])
    assert code_of(lambda: dsse.verify(data, {})) == "E_KEY_UNKNOWN"
    swapped = {pairs["author"].key_id: pairs["reviewer"].sign_public}
    assert code_of(lambda: dsse.verify(data, swapped)) == "E_KEY_UNKNOWN"
    envelope = json.loads(data)
    envelope["signatures"] *= 2
    assert code_of(lambda: dsse.verify(_encode(envelope), known.keys)) == "E_ENVELOPE"
    envelope = json.loads(data)
    envelope["signatures"][0]["keyid"] = pairs["reviewer"].key_id
    assert code_of(lambda: dsse.verify(_encode(envelope), known.keys)) == "E_SIGNATURE"
    envelope = json.loads(data)
    envelope["payloadType"] = "application/json"
    assert code_of(lambda: dsse.verify(_encode(envelope), known.keys)) == "E_ENVELOPE"
    assert code_of(lambda: known.require(pairs["author"].key_id, "reviewer", 0)) == "E_ROLE"


def test_other_spellings_of_the_same_content_are_refused(pairs: Pairs) -> None:
    known = registry_of(pairs).keys
    data = dsse.sign(dsse.statement("urn:x:1", {"a": "1" * 64}, {"é": "ü"}), [pairs["author"].sign])
    value = json.loads(data)
    spellings = [
        json.dumps(value).encode(),
        data.rstrip(b"\n"),
        data + b"\n",
        b"\xef\xbb\xbf" + data,
        data.replace(b"payloadType", b"\\u0070ayloadType"),
        _encode({**value, "payload": value["payload"] + "\n"}),
        _encode(
            {
                **value,
                "payload": base64.urlsafe_b64encode(base64.b64decode(value["payload"]) + b"??>").decode(),
            }
        ),
        _encode({**value, "extra": 1}),
    ]
    body = json.dumps(json.loads(base64.b64decode(value["payload"])), indent=1).encode()
    resigned = pairs["author"].sign.sign(dsse.pae(dsse.PAYLOAD_TYPE, body))
    loose = {
        "payload": base64.b64encode(body).decode(),
        "payloadType": dsse.PAYLOAD_TYPE,
        "signatures": [{"keyid": pairs["author"].key_id, "sig": base64.b64encode(resigned).decode()}],
    }
    for spelling in (*spellings, _encode(loose)):
        assert code_of(lambda s=spelling: dsse.verify(s, known)) == "E_ENVELOPE"


def test_every_changed_byte_of_an_envelope_is_seen(pairs: Pairs) -> None:
    known = registry_of(pairs).keys
    data = dsse.sign(
        dsse.statement("urn:x:1", {"a": "1" * 64}, {"n": [1, 2.5, None]}), [pairs["author"].sign]
    )
    rng = random.Random(1)
    for _ in range(3000):
        place = rng.randrange(len(data))
        changed = bytearray(data)
        changed[place] ^= 1 << rng.randrange(8)
        with pytest.raises(TrustError):
            dsse.verify(bytes(changed), known)


def test_a_registry_grows_and_revokes_and_does_nothing_else(pairs: Pairs) -> None:
    steward = pairs["steward"]
    first = registry_of(pairs)
    other = keys.new("second-reviewer")
    second = registry.read(registry.extend(first, steward, other.public(), "reviewer"), steward.key_id, first)
    third = registry.read(registry.revoke(second, steward, other.key_id, 3), steward.key_id, second)
    assert third.require(other.key_id, "reviewer", 2).name == "second-reviewer"
    assert code_of(lambda: third.require(other.key_id, "reviewer", 3)) == "E_KEY_REVOKED"
    assert code_of(lambda: registry.revoke(third, steward, other.key_id, 9)) == "E_REGISTRY"
    assert (
        code_of(lambda: registry.extend(first, steward, pairs["author"].public(), "reviewer")) == "E_REGISTRY"
    )
    # A version that forgets somebody, or that follows from another one, is no successor.
    lone = registry.create(steward, [])
    assert code_of(lambda: registry.read(lone, steward.key_id, first)) == "E_REGISTRY"
    skipped = registry.revoke(second, steward, other.key_id, 3)
    assert code_of(lambda: registry.read(skipped, steward.key_id, first)) == "E_REGISTRY"
    # Somebody else's registry, although well signed, is not the trusted steward's.
    theirs = registry.create(pairs["author"], [])
    assert code_of(lambda: registry.read(theirs, steward.key_id)) == "E_REGISTRY"


def _encode(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


def test_no_private_key_in_the_environment_or_the_output(
    pairs: Pairs, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = pairs["author"].sign.private_bytes_raw().hex()
    assert all(secret not in value for value in os.environ.values())
    assert secret not in repr(pairs["author"])
