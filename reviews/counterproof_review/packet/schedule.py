"""The order of a replay: from the packet's root and a nonce of whoever replays, so that no side chooses it alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def seed(root: str, nonce: bytes) -> bytes:
    """SHA-256(root, nonce)."""
    return hashlib.sha256(bytes.fromhex(root) + nonce).digest()


def order(seed_bytes: bytes, block: int, arms: Iterable[str]) -> list[str]:
    """The arms of a block, by SHA-256(seed, block as 4 bytes big-endian, opaque name)."""
    prefix = seed_bytes + block.to_bytes(4, "big")
    return sorted(arms, key=lambda arm: hashlib.sha256(prefix + arm.encode("ascii")).digest())


def runs(root: str, nonce: bytes, blocks: int, arms: Iterable[str]) -> list[tuple[int, str]]:
    """Every run of a replay: (block, opaque arm), block after block."""
    names = sorted(arms)
    start = seed(root, nonce)
    return [(block, arm) for block in range(blocks) for arm in order(start, block, names)]
