"""What one person keeps in the key folder besides keys: whom to trust as steward, and the nonce of a review."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from counterproof.record import atomic
from counterproof_review.packet import canonical
from counterproof_review.packet.errors import PacketError
from counterproof_review.trust import keys
from counterproof_review.trust.encoding import from_hex
from counterproof_review.trust.errors import TrustError

NONCE_BYTES = 32
_TRUSTED = "trusted.json"
_NONCES = "nonces"


def trusted() -> frozenset[str]:
    """Key ids of the stewards that are trusted here. Raises TrustError E_KEY_FILE for a damaged list."""
    path = keys.folder() / _TRUSTED
    if not path.is_file():
        return frozenset()
    try:
        found = canonical.decode_object(path.read_bytes(), _TRUSTED)
    except PacketError as error:
        raise TrustError("E_KEY_FILE", str(error)) from None
    listed = found.get("stewards")
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise TrustError("E_KEY_FILE", f"{_TRUSTED} holds no list of stewards")
    return frozenset(listed)


def trust(steward: str) -> None:
    """Trust a steward by key id (64 hex digits), told by another way than any file of a review."""
    from_hex(steward, "a key id", length=32)
    place = keys.folder()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = {"stewards": sorted(trusted() | {steward})}
    atomic.write_bytes(place / _TRUSTED, canonical.encode(content))


def new_nonce() -> tuple[bytes, str]:
    """A fresh nonce, kept in a file of mode 0600, and the name it is found by."""
    nonce, name = secrets.token_bytes(NONCE_BYTES), secrets.token_hex(8)
    path = _nonce_path(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(nonce.hex())
    return nonce, name


def nonce(name: str) -> bytes:
    """Inverse of `new_nonce`. Raises TrustError E_LOST."""
    path = _nonce_path(name)
    if not path.is_file():
        raise TrustError("E_LOST", "the nonce of this review is not in your key folder")
    return from_hex(path.read_text(encoding="ascii"), "the nonce", length=NONCE_BYTES)


def _nonce_path(name: str) -> Path:
    from_hex(name, "the name of a nonce", length=8)
    return keys.folder() / _NONCES / name
