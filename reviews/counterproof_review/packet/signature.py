"""The author's signature over a sealed packet: an in-toto statement about PACKET.json and MANIFEST.jsonl.

The envelope carries the author's public key. That proves one author for the whole packet; who that is says the
registry of a steward alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from counterproof_review.packet import layout
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive
from counterproof_review.trust import dsse, seal
from counterproof_review.trust.encoding import from_hex
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair

PREDICATE = "urn:counterproof:replication-packet:1"
_FIELDS = {"packet_id", "author", "sign", "commitment", "escrow"}


@dataclass(frozen=True)
class Signature:
    """A checked signature. `commitment`: of the seal; `escrow`: key ids of the stewards that can open it."""

    author: str
    commitment: dict[str, str]
    escrow: tuple[str, ...]


def sign(author: KeyPair, packet_id: str, packet: str, root: str, sealed: bytes) -> bytes:
    """The envelope. `packet`, `root`: sha256 of PACKET.json and of the manifest."""
    predicate = {
        "packet_id": packet_id,
        "author": author.key_id,
        "sign": author.sign_public.hex(),
        "commitment": seal.commitment_of(sealed),
        "escrow": list(seal.escrow_of(sealed)),
    }
    subjects = {layout.PACKET: packet, layout.MANIFEST: root}
    return dsse.sign(dsse.statement(PREDICATE, subjects, predicate), [author.sign])


def check(archive: Archive, packet_id: str, digests: Mapping[str, str], sealed: bytes) -> Signature:
    """Hold the envelope against packet and seal. `digests`: sha256 of PACKET.json and MANIFEST.jsonl by path.

    Raises PacketError E_SIGNATURE; its message names what does not hold.
    """
    data = archive.read(layout.SIGNATURE, dsse.MAX_ENVELOPE_BYTES)
    try:
        public = from_hex(dsse.peek(data).get("sign"), "the author's key", length=32)
        signed = dsse.verify(data, {dsse.key_id(public): public})
        commitment, escrow = seal.commitment_of(sealed), seal.escrow_of(sealed)
    except TrustError as error:
        raise PacketError("E_SIGNATURE", str(error), path=layout.SIGNATURE) from None
    found = signed.predicate
    if signed.predicate_type != PREDICATE or set(found) != _FIELDS or len(signed.signers) != 1:
        raise PacketError("E_SIGNATURE", "is no signature of one author over a packet", path=layout.SIGNATURE)
    if signed.subjects != dict(digests) or found["packet_id"] != packet_id:
        raise PacketError("E_SIGNATURE", "signs another packet", path=layout.SIGNATURE)
    if found["author"] != signed.signers[0] or found["commitment"] != commitment:
        raise PacketError("E_SIGNATURE", "signs another seal, or for somebody else", path=layout.SIGNATURE)
    if found["escrow"] != list(escrow) or not escrow:
        raise PacketError("E_SIGNATURE", "names other stewards than the seal", path=layout.SIGNATURE)
    return Signature(signed.signers[0], commitment, tuple(escrow))
