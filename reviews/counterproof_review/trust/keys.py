"""A person's private keys: one Ed25519 key to sign and one X25519 key for seals, in files that only they can read.

They lie in `$COUNTERPROOF_KEYS`, else in `~/.config/counterproof/keys`, never inside a repository. A key file is
canonical JSON {"schema", "name", "created_utc", "sign", "seal"} with mode 0600 in a folder with mode 0700.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from counterproof.record.journal import now_utc
from counterproof_review.packet import canonical
from counterproof_review.packet.errors import PacketError
from counterproof_review.trust.dsse import key_id
from counterproof_review.trust.encoding import from_hex
from counterproof_review.trust.errors import TrustError

SCHEMA = "counterproof-key/1"
SUFFIX = ".key.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_FIELDS = {"schema", "name", "created_utc", "sign", "seal"}


@dataclass(frozen=True)
class KeyPair:
    """One person's keys. `key_id` names the person everywhere: sha256 of the public signing key."""

    name: str
    created_utc: str
    sign: Ed25519PrivateKey
    seal: X25519PrivateKey

    @property
    def key_id(self) -> str:
        return key_id(self.sign_public)

    @property
    def sign_public(self) -> bytes:
        """Raw Ed25519 public key, 32 bytes."""
        return self.sign.public_key().public_bytes_raw()

    @property
    def seal_public(self) -> bytes:
        """Raw X25519 public key, 32 bytes."""
        return self.seal.public_key().public_bytes_raw()

    def public(self) -> dict[str, str]:
        """What others may know: the line that a steward enters into the registry."""
        return {
            "keyid": self.key_id,
            "name": self.name,
            "sign": self.sign_public.hex(),
            "seal": self.seal_public.hex(),
        }


def folder() -> Path:
    """Where this person's keys lie. Raises TrustError E_KEY_PLACE inside a repository."""
    given = os.environ.get("COUNTERPROOF_KEYS")
    place = Path(given) if given else Path.home() / ".config" / "counterproof" / "keys"
    place = place.absolute()
    for parent in (place, *place.parents):
        if (parent / ".git").exists():
            raise TrustError(
                "E_KEY_PLACE",
                f"private keys would lie inside the repository {parent}",
                details=["set COUNTERPROOF_KEYS to a folder outside every repository"],
            )
    return place


def new(name: str) -> KeyPair:
    """Make and store keys under a new name. Raises TrustError E_KEY_NAME for a bad or taken one."""
    _check_name(name)
    return store(KeyPair(name, now_utc(), Ed25519PrivateKey.generate(), X25519PrivateKey.generate()))


def store(pair: KeyPair) -> KeyPair:
    """Write keys into the key folder (mode 0600). Raises TrustError E_KEY_NAME where the name is taken."""
    place = folder()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = place / f"{pair.name}{SUFFIX}"
    content = canonical.encode(
        {
            "schema": SCHEMA,
            "name": pair.name,
            "created_utc": pair.created_utc,
            "sign": pair.sign.private_bytes_raw().hex(),
            "seal": pair.seal.private_bytes_raw().hex(),
        }
    )
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise TrustError("E_KEY_NAME", f"there is a key '{pair.name}' already; choose another name") from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return pair


def load(name: str) -> KeyPair:
    """Read keys. Raises TrustError E_KEY_NAME, or E_KEY_FILE for a missing, damaged or exposed file."""
    _check_name(name)
    path = folder() / f"{name}{SUFFIX}"
    if not path.is_file():
        raise TrustError(
            "E_KEY_FILE", f"there is no key '{name}'", details=[f"make one: counterproof keys new {name}"]
        )
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise TrustError(
            "E_KEY_FILE", f"the key '{name}' can be read by others", details=[f"chmod 600 {path}"]
        )
    try:
        found = canonical.decode_object(path.read_bytes(), "key file")
    except PacketError as error:
        raise TrustError("E_KEY_FILE", f"the key '{name}' cannot be read: {error}") from None
    if set(found) != _FIELDS or found["schema"] != SCHEMA or found["name"] != name:
        raise TrustError("E_KEY_FILE", f"the file of key '{name}' is not of schema {SCHEMA}")
    sign = from_hex(found["sign"], "the signing key", length=32)
    seal = from_hex(found["seal"], "the seal key", length=32)
    return KeyPair(
        name,
        str(found["created_utc"]),
        Ed25519PrivateKey.from_private_bytes(sign),
        X25519PrivateKey.from_private_bytes(seal),
    )


def names() -> list[str]:
    """The names of all keys here, sorted."""
    place = folder()
    return (
        sorted(path.name.removesuffix(SUFFIX) for path in place.glob(f"*{SUFFIX}")) if place.is_dir() else []
    )


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise TrustError("E_KEY_NAME", f"'{name}' is no key name: a-z, 0-9 and '-', at most 40 characters")
