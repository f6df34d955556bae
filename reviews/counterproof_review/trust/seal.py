"""Results under seal: nobody can read them before the reveal, and the author cannot open them to anything else.

padded = length (8 bytes, big endian) || plaintext || zeros up to a power of two, at least 4 KiB, so that the size tells little.
ct     = ChaCha20Poly1305(key, nonce, padded, aad), aad = canonical {"context": ..., "schema": ...}
commit = sha256("seal/plain\\0" || salt || sha256(aad) || padded), sha256("seal/key\\0" || salt || key), sha256(ct)

The cipher alone does not commit to its key: one ciphertext can be made to open to two texts under two keys (Dodis,
Grubbs, Ristenpart, Woodage, "Fast Message Franking", CRYPTO 2018). Hence the two salted commitments beside it.
Escrow: (key || salt) to a steward's X25519 key: ephemeral key, HKDF-SHA256, ChaCha20Poly1305.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from counterproof_review.packet import canonical
from counterproof_review.packet.errors import PacketError
from counterproof_review.trust.encoding import from_base64, from_hex, to_base64
from counterproof_review.trust.errors import TrustError

SCHEMA = "counterproof-seal/1"
KEY_BYTES = SALT_BYTES = 32
NONCE_BYTES = 12
MIN_PADDED = 4096
MAX_PADDED = 1 << 21  # in base64 it still fits the largest JSON document that is read
_FIELDS = {"schema", "context", "nonce", "ciphertext", "commitment", "escrow"}
_BOX_FIELDS = {"keyid", "ephemeral", "box"}


@dataclass(frozen=True)
class SealKeys:
    """What opens a seal. Both are secret until the reveal."""

    key: bytes
    salt: bytes

    @classmethod
    def new(cls) -> SealKeys:
        """Fresh random keys."""
        return cls(os.urandom(KEY_BYTES), os.urandom(SALT_BYTES))

    def as_dict(self) -> dict[str, str]:
        """As a reveal carries them."""
        return {"key": self.key.hex(), "salt": self.salt.hex()}

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> SealKeys:
        """Inverse of `as_dict`. Raises TrustError E_ENVELOPE."""
        if set(value) != {"key", "salt"}:
            raise TrustError("E_ENVELOPE", "seal keys have other fields than key and salt")
        return cls(
            from_hex(value["key"], "the seal's key", length=KEY_BYTES),
            from_hex(value["salt"], "the seal's salt", length=SALT_BYTES),
        )


def seal(
    plaintext: bytes,
    context: str,
    keys: SealKeys,
    escrow: Mapping[str, bytes],
    *,
    nonce: bytes | None = None,
    ephemeral: Mapping[str, bytes] | None = None,
    least: int = MIN_PADDED,
) -> bytes:
    """The sealed document's canonical bytes.

    context    what the seal belongs to (a packet's id): it opens nowhere else
    escrow     raw X25519 public keys of the stewards, by their name in the registry
    nonce, ephemeral  fixed values for a deterministic build (12 bytes; 32 bytes by steward); else random
    least    pad at least to so many bytes, a power of two: texts up to it have equal size

    Raises TrustError E_SEAL for a plaintext beyond the limit.
    """
    padded = _pad(plaintext, least)
    aad = _aad(context)
    used = nonce or os.urandom(NONCE_BYTES)
    ciphertext = ChaCha20Poly1305(keys.key).encrypt(used, padded, aad)
    boxes = [
        _box(name, public, keys, aad, (ephemeral or {}).get(name)) for name, public in sorted(escrow.items())
    ]
    return canonical.encode(
        {
            "schema": SCHEMA,
            "context": context,
            "nonce": to_base64(used),
            "ciphertext": to_base64(ciphertext),
            "commitment": _commitment(keys, aad, padded, ciphertext),
            "escrow": boxes,
        }
    )


def commitment_of(document: bytes) -> dict[str, str]:
    """The three digests that a signed ISSUE states. Raises TrustError E_SEAL."""
    return dict(_read(document)["commitment"])


def escrow_of(document: bytes) -> tuple[str, ...]:
    """The key ids of the stewards for whom the seal holds a box. Raises TrustError E_SEAL."""
    return tuple(str(box["keyid"]) for box in _read(document)["escrow"])


def context_of(document: bytes) -> str:
    """What the seal says it belongs to. Raises TrustError E_SEAL."""
    return str(_read(document)["context"])


def open_seal(document: bytes, context: str, keys: SealKeys) -> bytes:
    """The plaintext. Raises TrustError E_COMMIT unless keys, context and text are the ones that were sealed."""
    found = _read(document)
    if found["context"] != context:
        raise TrustError("E_COMMIT", f"the seal belongs to {found['context']!r}, not to {context!r}")
    aad = _aad(context)
    nonce = from_base64(found["nonce"], "the seal's nonce", length=NONCE_BYTES)
    ciphertext = from_base64(found["ciphertext"], "the seal's ciphertext")
    registered = found["commitment"]
    if registered["ciphertext"] != hashlib.sha256(ciphertext).hexdigest():
        raise TrustError("E_COMMIT", "the ciphertext is not the committed one")
    if registered["key"] != _key_digest(keys):
        raise TrustError("E_COMMIT", "the key is not the committed one")
    try:
        padded = ChaCha20Poly1305(keys.key).decrypt(nonce, ciphertext, aad)
    except InvalidTag:
        raise TrustError("E_COMMIT", "the key does not open the seal") from None
    if registered["plain"] != _plain_digest(keys, aad, padded):
        raise TrustError("E_COMMIT", "the opened text is not the committed one")
    return _unpad(padded)


def open_escrow(document: bytes, name: str, private: X25519PrivateKey) -> SealKeys:
    """The seal's keys from a steward's box. Raises TrustError E_ESCROW."""
    found = _read(document)
    aad = _aad(found["context"])
    for box in found["escrow"]:
        if box["keyid"] != name:
            continue
        ephemeral = from_base64(box["ephemeral"], "the ephemeral key", length=32)
        shared = private.exchange(X25519PublicKey.from_public_bytes(ephemeral))
        wrapping = _wrapping_key(shared, ephemeral, private.public_key().public_bytes_raw())
        try:
            both = ChaCha20Poly1305(wrapping).decrypt(
                bytes(NONCE_BYTES), from_base64(box["box"], "the box"), aad
            )
        except InvalidTag:
            raise TrustError("E_ESCROW", "the steward's key does not open the box") from None
        return SealKeys(both[:KEY_BYTES], both[KEY_BYTES:])
    raise TrustError("E_ESCROW", f"the seal holds no box for {name}")


def _box(name: str, public: bytes, keys: SealKeys, aad: bytes, fixed: bytes | None) -> dict[str, str]:
    # The wrapping key is used once, so that a constant nonce repeats under no key.
    private = X25519PrivateKey.from_private_bytes(fixed) if fixed else X25519PrivateKey.generate()
    ephemeral = private.public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    wrapped = ChaCha20Poly1305(_wrapping_key(shared, ephemeral, public)).encrypt(
        bytes(NONCE_BYTES), keys.key + keys.salt, aad
    )
    return {"keyid": name, "ephemeral": to_base64(ephemeral), "box": to_base64(wrapped)}


def _wrapping_key(shared: bytes, ephemeral: bytes, public: bytes) -> bytes:
    derive = HKDF(hashes.SHA256(), KEY_BYTES, salt=ephemeral + public, info=b"counterproof/escrow/1")
    return derive.derive(shared)


def _pad(plaintext: bytes, least: int = MIN_PADDED) -> bytes:
    if least < MIN_PADDED or least & (least - 1):
        raise TrustError("E_SEAL", f"the least size must be a power of two from {MIN_PADDED} on")
    whole = len(plaintext).to_bytes(8, "big") + plaintext
    size = least
    while size < len(whole):
        size *= 2
    if size > MAX_PADDED:
        raise TrustError("E_SEAL", f"{len(plaintext)} bytes are more than a seal holds ({MAX_PADDED})")
    return whole.ljust(size, b"\0")


def _unpad(padded: bytes) -> bytes:
    length = int.from_bytes(padded[:8], "big")
    size = len(padded)
    right = size >= MIN_PADDED and not size & (size - 1)
    if not right or length > size - 8 or _pad(padded[8 : 8 + length], size) != padded:
        raise TrustError("E_SEAL", "the padding is not the canonical one")
    return padded[8 : 8 + length]


def _aad(context: str) -> bytes:
    return canonical.encode({"context": context, "schema": SCHEMA})


def _commitment(keys: SealKeys, aad: bytes, padded: bytes, ciphertext: bytes) -> dict[str, str]:
    return {
        "plain": _plain_digest(keys, aad, padded),
        "key": _key_digest(keys),
        "ciphertext": hashlib.sha256(ciphertext).hexdigest(),
    }


def _plain_digest(keys: SealKeys, aad: bytes, padded: bytes) -> str:
    return hashlib.sha256(b"seal/plain\0" + keys.salt + hashlib.sha256(aad).digest() + padded).hexdigest()


def _key_digest(keys: SealKeys) -> str:
    return hashlib.sha256(b"seal/key\0" + keys.salt + keys.key).hexdigest()


def _read(document: bytes) -> dict[str, Any]:
    try:
        found = canonical.decode_object(document, "seal")
    except PacketError as error:
        raise TrustError("E_SEAL", str(error)) from None
    texts = ("schema", "context", "nonce", "ciphertext")
    if set(found) != _FIELDS or found["schema"] != SCHEMA or any(type(found[t]) is not str for t in texts):
        raise TrustError("E_SEAL", f"is not of schema {SCHEMA}")
    commitment, boxes = found["commitment"], found["escrow"]
    if not isinstance(commitment, dict) or set(commitment) != {"plain", "key", "ciphertext"}:
        raise TrustError("E_SEAL", "the commitment has other fields than plain, key and ciphertext")
    for name, digest in commitment.items():
        from_hex(digest, f"the commitment to the {name}", length=32)
    if not isinstance(boxes, list) or any(not isinstance(b, dict) or set(b) != _BOX_FIELDS for b in boxes):
        raise TrustError("E_SEAL", "the escrow is not a list of boxes")
    return found
