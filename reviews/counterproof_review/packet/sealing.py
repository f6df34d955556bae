"""The author's part of a sealed packet: what is encrypted, under which keys, and what it must be when it is opened.

Everything secret about one packet follows from one random value of 32 bytes, which stays in the author's key folder:
label key, packet id, seal key and salt, and the escrow's ephemeral keys (HKDF-SHA256 by purpose). The seal's nonce
also depends on the text, so that no nonce ever serves two texts.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from counterproof_review.packet import canonical, layout
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.labels import PacketKeys, opaque_names
from counterproof_review.trust import keys as key_files
from counterproof_review.trust import seal
from counterproof_review.trust.encoding import from_hex
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair
from counterproof_review.trust.seal import SealKeys

SCHEMA = "replication-sealed/1"
SECRET_SCHEMA = "counterproof-packet-secret/1"
MASTER_BYTES = 32
BASE_BYTES = 1 << 16
RUN_BYTES = 512  # digests, numbers and names of one run take less
MAX_TEXT = 2000


@dataclass(frozen=True)
class Secrets:
    """The one secret of a packet."""

    master: bytes

    @classmethod
    def fresh(cls, arms: tuple[str, ...]) -> Secrets:
        """A new secret under which no two arms share an opaque name."""
        while True:
            found = cls(secrets.token_bytes(MASTER_BYTES))
            if len({found.packet.opaque(arm) for arm in arms}) == len(arms):
                return found

    @property
    def packet(self) -> PacketKeys:
        return PacketKeys(self._derive("label"), self._derive("packet-id"))

    @property
    def seal(self) -> SealKeys:
        return SealKeys(self._derive("seal-key"), self._derive("seal-salt"))

    def ephemeral(self, steward: str) -> bytes:
        """The escrow's private key for one steward."""
        return self._derive(f"escrow/{steward}")

    def nonce(self, plaintext: bytes) -> bytes:
        """The seal's nonce for this text."""
        key = self._derive("seal-nonce")
        return hmac.new(key, plaintext, hashlib.sha256).digest()[: seal.NONCE_BYTES]

    def _derive(self, purpose: str) -> bytes:
        info = f"counterproof/packet/{purpose}".encode()
        return HKDF(hashes.SHA256(), MASTER_BYTES, salt=None, info=info).derive(self.master)


@dataclass(frozen=True)
class Sealing:
    """What turns a study into a sealed packet. `escrow`: raw X25519 public keys of the stewards by key id."""

    secrets: Secrets
    author: KeyPair
    escrow: Mapping[str, bytes]
    supersedes: str | None = None


def sealed_bytes(sealing: Sealing, content: Mapping[str, Any]) -> bytes:
    """sealed/results.sealed.json. Its size follows from the number of runs alone.

    Raises TrustError E_SEAL for more text than that size holds.
    """
    plaintext = canonical.encode(dict(content))
    least = _room(len(content["runs"]))
    if len(plaintext) + 8 > least:
        raise TrustError(
            "E_SEAL", f"{len(plaintext)} bytes of results are more than {least}, their fixed size"
        )
    keys = sealing.secrets
    return seal.seal(
        plaintext,
        keys.packet.packet_id,
        keys.seal,
        sealing.escrow,
        nonce=keys.nonce(plaintext),
        ephemeral={name: keys.ephemeral(name) for name in sealing.escrow},
        least=least,
    )


def content(
    results: Mapping[str, Any], sealing: Sealing, facts: Mapping[str, Any], rows_sha256: str
) -> dict[str, Any]:
    """What is sealed, from the results as an open packet holds them.

    facts   texts of the author: {"study", "experiment", "mechanism"}, cut to a fixed length
    """
    kept = ("arms", "factor", "primary", "per_block", "log_ratios", "evidence_valid")
    return {
        "schema": SCHEMA,
        "packet_id": sealing.secrets.packet.packet_id,
        **{name: results[name] for name in kept},
        "label_key": sealing.secrets.packet.label_key.hex(),
        "salt": {"delay_us": results["injected_delay_us"]},
        "facts": {name: str(value)[:MAX_TEXT] for name, value in facts.items()},
        "runs": [{**run, "outputs_sha256": digest_of(run["outputs_sha256"])} for run in results["runs"]],
        "rows_sha256": rows_sha256,
    }


def digest_of(outputs: list[str | None]) -> str:
    """One digest over the outputs of a run, in the order of its requests."""
    return hashlib.sha256(canonical.encode(outputs)).hexdigest()


def read_content(plaintext: bytes, packet_id: str, opaque: set[str], blocks: int) -> dict[str, Any]:
    """The opened text, held against the packet that it was sealed for.

    Raises TrustError E_SEAL where it is about another packet, other arms or other blocks. A salt that is missing or
    null is left to the verdict.
    """
    try:
        found = canonical.decode_object(plaintext, layout.SEALED)
    except PacketError as error:
        raise TrustError("E_SEAL", str(error)) from None
    needed = {"schema", "packet_id", "arms", "label_key", "primary", "per_block", "log_ratios", "factor"}
    if not needed <= set(found) or found["schema"] != SCHEMA or found["packet_id"] != packet_id:
        raise TrustError("E_SEAL", f"what was sealed is not of schema {SCHEMA}, or of another packet")
    keys = PacketKeys(from_hex(found["label_key"], "the label key", length=32), b"")
    arms = found["arms"]
    if not isinstance(arms, dict) or set(arms.values()) != opaque or opaque_names(keys, arms) != arms:
        raise TrustError("E_SEAL", "the arm map does not follow from the label key, or names other arms")
    samples = [*found["per_block"].values(), *found["log_ratios"].values()]
    if any(not isinstance(values, list) or len(values) != blocks for values in samples):
        raise TrustError("E_SEAL", "the results are not one per block")
    return found


def write_secrets(found: Secrets) -> Path:
    """Keep a packet's secret in the author's key folder (mode 0600). An equal one may lie there already."""
    place = key_files.folder() / "packets"
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = place / f"{found.packet.packet_id}.secret.json"
    data = canonical.encode({"schema": SECRET_SCHEMA, "master": found.master.hex()})
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        if path.read_bytes() == data:
            return path
        raise TrustError("E_KEY_NAME", "another secret of this packet lies there already") from None
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return path


def read_secrets(packet_id: str) -> Secrets:
    """Inverse of `write_secrets`. Raises TrustError E_LOST when it is not there, E_KEY_FILE when it is damaged."""
    path = key_files.folder() / "packets" / f"{packet_id}.secret.json"
    if not path.is_file():
        raise TrustError("E_LOST", f"the secret of packet {packet_id} is not in {path.parent.name}/")
    try:
        found = canonical.decode_object(path.read_bytes(), path.name)
    except PacketError as error:
        raise TrustError("E_KEY_FILE", str(error)) from None
    if set(found) != {"schema", "master"} or found["schema"] != SECRET_SCHEMA:
        raise TrustError("E_KEY_FILE", f"{path.name} is not of schema {SECRET_SCHEMA}")
    return Secrets(from_hex(found["master"], "the packet's secret", length=MASTER_BYTES))


def _room(runs: int) -> int:
    size = BASE_BYTES
    while size < BASE_BYTES // 2 + RUN_BYTES * runs:
        size *= 2
    return size
