"""API keys and the tenants they stand for. A tenant comes from its key alone, never from a request's body."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from intaglio.errors import ConfigError
from intaglio.serve.api_error import ApiError

MIN_KEY_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request. admin: may read the server's metrics and its configuration."""

    tenant: str
    admin: bool


class KeyRing:
    """The known keys. Without any, every caller is the one tenant "" and an admin.

    Only digests are kept, all of them are compared on every call, each in constant time.
    """

    def __init__(self, entries: Iterable[tuple[str, Caller]] = ()) -> None:
        """Raises ConfigError for a key that is too short, not printable ASCII, or given twice."""
        known: dict[bytes, Caller] = {}
        for number, (key, caller) in enumerate(entries, 1):
            if len(key) < MIN_KEY_CHARACTERS or not key.isascii() or not key.isprintable():
                raise ConfigError(
                    f"API key {number} must be at least {MIN_KEY_CHARACTERS} printable ASCII characters",
                    field="api_keys",
                )
            if _digest(key) in known:
                raise ConfigError(f"API key {number} is given twice; give it once", field="api_keys")
            known[_digest(key)] = caller
        self._known = tuple(known.items())

    @classmethod
    def from_file(cls, path: Path) -> KeyRing:
        """Read lines `key tenant` or `key tenant admin`; # begins a comment. Raises ConfigError."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError(f"cannot read the API keys: {reason}", field="api_keys") from None
        entries = []
        for number, line in enumerate(lines, 1):
            words = line.split("#", 1)[0].split()
            if not words:
                continue
            if len(words) not in (2, 3) or words[2:] not in ([], ["admin"]):
                raise ConfigError(
                    f"line {number} of the API keys is not of the form: key tenant [admin]", field="api_keys"
                )
            entries.append((words[0], Caller(words[1], len(words) == 3)))
        if not entries:
            raise ConfigError("the file of API keys has no key; add one, or leave it out", field="api_keys")
        return cls(entries)

    @property
    def required(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._known)

    def caller(self, authorization: str | None) -> Caller:
        """The caller of an Authorization header. Raises ApiError 401."""
        if not self._known:
            return Caller("", admin=True)
        scheme, _, key = (authorization or "").partition(" ")
        found: Caller | None = None
        digest = _digest(key.strip() if scheme.lower() == "bearer" else "")
        for known, caller in self._known:
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise ApiError(
                401,
                "no valid API key: send the header 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
