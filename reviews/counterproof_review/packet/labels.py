"""Opaque names of arms, and the keys they are made with. Keys never enter a packet's public part."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from counterproof_review.packet.errors import PacketError

KEY_BYTES = 32
SCHEMA = "replication-keys/1"
OPAQUE = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True)
class PacketKeys:
    """`label_key` makes the opaque names; `nonce` makes the packet's id. Equal keys give equal bytes."""

    label_key: bytes
    nonce: bytes

    @staticmethod
    def fresh() -> PacketKeys:
        """Keys nobody has seen."""
        return PacketKeys(secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES))

    @property
    def packet_id(self) -> str:
        """16 hex digits, from the nonce alone: it says nothing about study or results."""
        return hashlib.sha256(b"counterproof/packet-id\0" + self.nonce).hexdigest()[:16]

    def opaque(self, arm: str) -> str:
        """The arm's name in the packet: HMAC-SHA256(label key, arm), first 4 bytes in hex."""
        return hmac.new(self.label_key, arm.encode("utf-8"), hashlib.sha256).hexdigest()[:8]


def opaque_names(keys: PacketKeys, arms: Iterable[str]) -> dict[str, str]:
    """`{arm: opaque name}`. Raises PacketError E_ARMS if two arms share a name (take other keys then)."""
    names = {arm: keys.opaque(arm) for arm in arms}
    if len(set(names.values())) != len(names):
        raise PacketError("E_ARMS", "two arms have the same opaque name; build with other keys")
    return names


def fresh_keys(arms: Iterable[str]) -> PacketKeys:
    """Fresh keys under which no two of `arms` share a name."""
    names = tuple(arms)
    while True:
        keys = PacketKeys.fresh()
        if len({keys.opaque(arm) for arm in names}) == len(names):
            return keys


def write_keys(path: Path, keys: PacketKeys) -> None:
    """Write the keys for their owner alone (mode 0600). An existing file is kept: E_DESTINATION."""
    content = {
        "schema": SCHEMA,
        "packet_id": keys.packet_id,
        "label_key": keys.label_key.hex(),
        "nonce": keys.nonce.hex(),
    }
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        if read_keys(path) == keys:
            return
        raise PacketError("E_DESTINATION", "another key stands there already", path=path.name) from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        json.dump(content, file, indent=2, sort_keys=True)
        file.write("\n")


def read_keys(path: Path) -> PacketKeys:
    """Read what `write_keys` wrote. Raises PacketError E_JSON or E_SCHEMA."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise PacketError("E_SCHEMA", f"is not a {SCHEMA}", path=path.name)
        keys = PacketKeys(bytes.fromhex(content["label_key"]), bytes.fromhex(content["nonce"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PacketError("E_JSON", f"no keys can be read: {error}", path=path.name) from None
    if len(keys.label_key) != KEY_BYTES or len(keys.nonce) != KEY_BYTES:
        raise PacketError("E_SCHEMA", f"keys have {KEY_BYTES} bytes", path=path.name)
    return keys
