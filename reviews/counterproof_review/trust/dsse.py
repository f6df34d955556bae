"""DSSE envelopes over in-toto statements, signed with Ed25519; one content has one encoding.

PAE(type, body) = "DSSEv1" SP len(type) SP type SP len(body) SP body, lengths in bytes as decimal digits.
Sources: secure-systems-lab/dsse, protocol.md v1.0; in-toto attestation framework, Statement v1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from counterproof_review.packet import canonical
from counterproof_review.packet.errors import PacketError
from counterproof_review.trust.encoding import from_base64, to_base64
from counterproof_review.trust.errors import TrustError

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
MAX_ENVELOPE_BYTES = 1 << 20
MAX_SIGNATURES = 8
SIGNATURE_BYTES = 64
_ENVELOPE = {"payload", "payloadType", "signatures"}
_STATEMENT = {"_type", "predicate", "predicateType", "subject"}


@dataclass(frozen=True)
class Signed:
    """An envelope whose every signature was checked. `signers`: key ids, in the order of the signatures."""

    predicate_type: str
    subjects: dict[str, str]
    predicate: dict[str, Any]
    signers: tuple[str, ...]
    sha256: str


def pae(payload_type: str, body: bytes) -> bytes:
    """The bytes that are signed."""
    kind = payload_type.encode()
    return b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(body)).encode(), body])


def key_id(public: bytes) -> str:
    """sha256 of the raw 32-byte public key, in hex."""
    return hashlib.sha256(public).hexdigest()


def statement(
    predicate_type: str, subjects: Mapping[str, str], predicate: Mapping[str, Any]
) -> dict[str, Any]:
    """An in-toto statement. `subjects`: sha256 in hex by name."""
    listed = [{"digest": {"sha256": digest}, "name": name} for name, digest in sorted(subjects.items())]
    return {
        "_type": STATEMENT_TYPE,
        "predicate": dict(predicate),
        "predicateType": predicate_type,
        "subject": listed,
    }


def sign(content: Mapping[str, Any], keys: Sequence[Ed25519PrivateKey]) -> bytes:
    """The canonical bytes of an envelope around `content`, signed by every key in order of key ids."""
    body = _canonical(dict(content))
    message = pae(PAYLOAD_TYPE, body)
    signatures = []
    for key in keys:
        public = key.public_key().public_bytes_raw()
        signatures.append({"keyid": key_id(public), "sig": to_base64(key.sign(message))})
    signatures.sort(key=lambda one: one["keyid"])
    envelope = {"payload": to_base64(body), "payloadType": PAYLOAD_TYPE, "signatures": signatures}
    return _canonical(envelope)


def countersign(data: bytes, keys: Mapping[str, bytes], key: Ed25519PrivateKey) -> bytes:
    """The envelope `data` with one signature more, over the very same content.

    Raises what `verify` raises for what is signed so far, and TrustError E_ENVELOPE where `key` has signed already.
    """
    signers = verify(data, keys).signers
    envelope = _object(data, "envelope", _ENVELOPE)
    own = key_id(key.public_key().public_bytes_raw())
    if own in signers:
        raise TrustError("E_ENVELOPE", f"the key {own[:16]} has signed this already")
    body = from_base64(envelope["payload"], "the payload")
    signed = {"keyid": own, "sig": to_base64(key.sign(pae(PAYLOAD_TYPE, body)))}
    envelope["signatures"] = sorted([*envelope["signatures"], signed], key=lambda one: one["keyid"])
    return _canonical(envelope)


def verify(data: bytes, keys: Mapping[str, bytes]) -> Signed:
    """Check an envelope against public keys (raw bytes by key id). Every signature must hold, and by another key.

    Raises TrustError E_ENVELOPE or E_STATEMENT for any other form, E_KEY_UNKNOWN, E_SIGNATURE.
    """
    envelope = _object(data, "envelope", _ENVELOPE)
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise TrustError(
            "E_ENVELOPE", f"the payload's type is {envelope['payloadType']!r}, not {PAYLOAD_TYPE}"
        )
    body = from_base64(envelope["payload"], "the payload")
    signers = _check_signatures(envelope["signatures"], pae(PAYLOAD_TYPE, body), keys)
    content = _object(body, "statement", _STATEMENT)
    if content["_type"] != STATEMENT_TYPE or not isinstance(content["predicate"], dict):
        raise TrustError("E_STATEMENT", "the payload is no in-toto Statement v1")
    if not isinstance(content["predicateType"], str):
        raise TrustError("E_STATEMENT", "predicateType is not text")
    digest = hashlib.sha256(data).hexdigest()
    return Signed(
        content["predicateType"], _subjects(content["subject"]), content["predicate"], signers, digest
    )


def peek(data: bytes) -> dict[str, Any]:
    """The predicate of an envelope whose signatures were NOT checked: only to find the key to check them with."""
    envelope = _object(data, "envelope", _ENVELOPE)
    content = _object(from_base64(envelope["payload"], "the payload"), "statement", _STATEMENT)
    if not isinstance(content["predicate"], dict):
        raise TrustError("E_STATEMENT", "the statement has no predicate")
    return content["predicate"]


def _check_signatures(found: object, message: bytes, keys: Mapping[str, bytes]) -> tuple[str, ...]:
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_SIGNATURES:
        raise TrustError("E_ENVELOPE", f"there must be 1 to {MAX_SIGNATURES} signatures")
    signers: list[str] = []
    for one in found:
        if not isinstance(one, dict) or set(one) != {"keyid", "sig"} or not isinstance(one["keyid"], str):
            raise TrustError("E_ENVELOPE", "a signature has other fields than keyid and sig")
        public = keys.get(one["keyid"])
        if public is None or key_id(public) != one["keyid"]:
            raise TrustError("E_KEY_UNKNOWN", f"no key {str(one['keyid'])[:16]} is registered")
        _check_signature(public, from_base64(one["sig"], "a signature", length=SIGNATURE_BYTES), message)
        signers.append(one["keyid"])
    if signers != sorted(set(signers)):
        raise TrustError("E_ENVELOPE", "signatures must stand in the order of their keys, one each")
    return tuple(signers)


def _check_signature(public: bytes, signature: bytes, message: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise TrustError("E_SIGNATURE", f"the signature of {key_id(public)[:16]} does not hold") from None


def _subjects(found: object) -> dict[str, str]:
    if not isinstance(found, list) or not found:
        raise TrustError("E_STATEMENT", "the statement is about nothing")
    result: dict[str, str] = {}
    for one in found:
        if not isinstance(one, dict) or set(one) != {"digest", "name"} or not isinstance(one["name"], str):
            raise TrustError("E_STATEMENT", "a subject has other fields than name and digest")
        digest = one["digest"]
        if not isinstance(digest, dict) or set(digest) != {"sha256"} or not _is_sha256(digest["sha256"]):
            raise TrustError("E_STATEMENT", "a subject's digest is no sha256")
        if one["name"] in result:
            raise TrustError("E_STATEMENT", f"the subject {one['name']!r} is named twice")
        result[one["name"]] = digest["sha256"]
    if list(result) != sorted(result):
        raise TrustError("E_STATEMENT", "subjects must stand in the order of their names")
    return result


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(c in "0123456789abcdef" for c in value)


def _object(data: bytes, what: str, fields: set[str]) -> dict[str, Any]:
    if len(data) > MAX_ENVELOPE_BYTES:
        raise TrustError("E_ENVELOPE", f"the {what} is larger than {MAX_ENVELOPE_BYTES} bytes")
    try:
        value = canonical.decode_object(data, what)
    except PacketError as error:
        raise TrustError("E_ENVELOPE", str(error)) from None
    if set(value) != fields:
        raise TrustError("E_ENVELOPE", f"the {what} has other fields than {', '.join(sorted(fields))}")
    return value


def _canonical(value: dict[str, Any]) -> bytes:
    try:
        return canonical.encode(value)
    except PacketError as error:
        raise TrustError("E_STATEMENT", str(error)) from None
