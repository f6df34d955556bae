"""Seals: they open to what was sealed, with its own keys, in its own place, and to nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st

from counterproof_review.packet import canonical
from counterproof_review.trust import seal as seals
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.seal import SealKeys

KEYS = SealKeys(bytes(range(32)), bytes(range(32, 64)))
STEWARD = X25519PrivateKey.from_private_bytes(b"\x07" * 32)
BOXES = {"steward": STEWARD.public_key().public_bytes_raw()}
TEXT = b'{"effect": -0.7}'


def sealed(text: bytes = TEXT, context: str = "packet-1") -> bytes:
    return seals.seal(text, context, KEYS, BOXES, nonce=b"\x01" * 12, ephemeral={"steward": b"\x09" * 32})


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(TrustError) as caught:
        action()
    return caught.value.code


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=9000))
def test_round_trip_and_a_size_that_tells_little(text: bytes) -> None:
    document = seals.seal(text, "p", KEYS, BOXES)
    assert seals.open_seal(document, "p", KEYS) == text
    size = len(json.loads(document)["ciphertext"])
    padded = next(4096 << n for n in range(8) if (4096 << n) >= len(text) + 8)
    assert size == 4 * -(-(padded + 16) // 3)


def test_the_same_keys_and_nonces_give_the_same_bytes() -> None:
    assert sealed() == sealed()
    assert sealed() != seals.seal(TEXT, "packet-1", SealKeys.new(), BOXES)


def test_second_opening_is_refused() -> None:
    """second_opening: another ciphertext, nonce, key, salt or place."""
    document = sealed()
    value = json.loads(document)
    other = json.loads(sealed(b"something else"))
    for field in ("ciphertext", "nonce"):
        changed = canonical.encode(
            {**value, field: other[field] if field == "ciphertext" else "AAAAAAAAAAAAAAAA"}
        )
        assert code_of(lambda c=changed: seals.open_seal(c, "packet-1", KEYS)) == "E_COMMIT"
    for wrong in (SealKeys(bytes(32), KEYS.salt), SealKeys(KEYS.key, bytes(32))):
        assert code_of(lambda w=wrong: seals.open_seal(document, "packet-1", w)) == "E_COMMIT"
    assert code_of(lambda: seals.open_seal(document, "packet-2", KEYS)) == "E_COMMIT"
    moved = canonical.encode({**value, "context": "packet-2"})
    assert code_of(lambda: seals.open_seal(moved, "packet-2", KEYS)) == "E_COMMIT"


def test_a_key_that_was_not_committed_opens_nothing_although_the_cipher_would_accept_it() -> None:
    """The author encrypts anew under another key and keeps the old commitments."""
    value = json.loads(sealed())
    second = SealKeys(b"\x05" * 32, KEYS.salt)
    aad = canonical.encode({"context": "packet-1", "schema": seals.SCHEMA})
    padded = (5).to_bytes(8, "big") + b"wrong" + bytes(4096 - 13)
    forged = ChaCha20Poly1305(second.key).encrypt(b"\x01" * 12, padded, aad)
    import base64
    import hashlib

    value["ciphertext"] = base64.b64encode(forged).decode()
    value["commitment"]["ciphertext"] = hashlib.sha256(forged).hexdigest()
    assert code_of(lambda: seals.open_seal(canonical.encode(value), "packet-1", second)) == "E_COMMIT"


def test_escrow_opens_for_the_steward_alone() -> None:
    document = sealed()
    assert seals.open_escrow(document, "steward", STEWARD) == KEYS
    assert seals.open_seal(document, "packet-1", seals.open_escrow(document, "steward", STEWARD)) == TEXT
    stranger = X25519PrivateKey.generate()
    assert code_of(lambda: seals.open_escrow(document, "steward", stranger)) == "E_ESCROW"
    assert code_of(lambda: seals.open_escrow(document, "nobody", STEWARD)) == "E_ESCROW"
    value = json.loads(document)
    moved = canonical.encode({**value, "context": "packet-2"})
    assert code_of(lambda: seals.open_escrow(moved, "steward", STEWARD)) == "E_ESCROW"


def test_too_much_is_refused() -> None:
    assert code_of(lambda: seals.seal(bytes(seals.MAX_PADDED), "p", KEYS, {})) == "E_SEAL"


def test_every_changed_byte_of_a_seal_is_seen_by_one_of_its_openings() -> None:
    document = sealed()
    whole = (KEYS, TEXT)

    def opened(data: bytes) -> object:
        return (seals.open_escrow(data, "steward", STEWARD), seals.open_seal(data, "packet-1", KEYS))

    assert opened(document) == whole
    rng = random.Random(3)
    for _ in range(2000):
        changed = bytearray(document)
        changed[rng.randrange(len(document))] ^= 1 << rng.randrange(8)
        with pytest.raises(TrustError):
            opened(bytes(changed))
