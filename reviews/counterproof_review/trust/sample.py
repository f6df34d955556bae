"""The keys of the sample that ships with the project. Everybody has them, so a signature by them proves nothing.

They follow from public texts: signing key sha256("counterproof/sample-key/<role>/sign"), seal key likewise. They are in
nobody's list of trusted stewards, and a review that rests on them lets no scope grow, whatever it says.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from counterproof_review.packet.labels import PacketKeys
from counterproof_review.trust.keys import KeyPair

ROLES = ("author", "reviewer", "steward")
MADE_UTC = "1980-01-01T00:00:00+00:00"


def key(role: str) -> KeyPair:
    """The sample key of a role, under the name `sample-<role>`."""
    return KeyPair(
        f"sample-{role}",
        MADE_UTC,
        Ed25519PrivateKey.from_private_bytes(_secret(f"{role}/sign")),
        X25519PrivateKey.from_private_bytes(_secret(f"{role}/seal")),
    )


def packet_keys() -> PacketKeys:
    """The keys of the sample's open packet: label key and nonce."""
    return PacketKeys(_secret("packet/label"), _secret("packet/nonce"))


def key_ids() -> frozenset[str]:
    """The ids by which sample keys are known and refused."""
    return frozenset(key(role).key_id for role in ROLES)


def _secret(purpose: str) -> bytes:
    return hashlib.sha256(f"counterproof/sample-key/{purpose}".encode()).digest()
