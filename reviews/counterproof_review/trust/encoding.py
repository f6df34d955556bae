"""Bytes as text in exactly one way: base64 and hex readers that refuse every other spelling of the same bytes."""

from __future__ import annotations

import base64
import binascii
import re

from counterproof_review.trust.errors import TrustError

_HEX = re.compile(r"(?:[0-9a-f]{2})*")


def to_base64(data: bytes) -> str:
    """Standard base64 (RFC 4648, section 4) with padding and without line ends."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: object, what: str, *, length: int | None = None) -> bytes:
    """Inverse of `to_base64`. Raises TrustError E_ENVELOPE for another spelling (white space, URL alphabet, missing
    padding, bits that count for nothing) or another length in bytes."""
    if not isinstance(text, str):
        raise TrustError("E_ENVELOPE", f"{what} is not text")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise TrustError("E_ENVELOPE", f"{what} is not base64") from None
    if to_base64(data) != text:
        raise TrustError("E_ENVELOPE", f"{what} is base64 in another spelling than the canonical one")
    return _sized(data, what, length)


def from_hex(text: object, what: str, *, length: int | None = None) -> bytes:
    """Lower-case hex digits. Raises TrustError E_ENVELOPE for anything else or another length in bytes."""
    if not isinstance(text, str) or not _HEX.fullmatch(text):
        raise TrustError("E_ENVELOPE", f"{what} is not lower-case hex")
    return _sized(bytes.fromhex(text), what, length)


def _sized(data: bytes, what: str, length: int | None) -> bytes:
    if length is not None and len(data) != length:
        raise TrustError("E_ENVELOPE", f"{what} has {len(data)} bytes, not {length}")
    return data
