"""What the steward does: witness, open the escrow after the deadline, say when nobody can open, and sign the verdict."""

from __future__ import annotations

from counterproof_review.packet import layout
from counterproof_review.packet.reader import Archive
from counterproof_review.protocol import author_steps, events, folder
from counterproof_review.protocol.folder import Review
from counterproof_review.trust import seal
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair


def witness(review: Review, key: KeyPair, role: str) -> int:
    """Write the heads of the other ledgers into one's own; returns how many had moved."""
    return folder.witness_others(review, key, role)


def reveal(review: Review, key: KeyPair) -> Review:
    """Open every issued packet from escrow. Raises TrustError E_ESCROW when a box does not open."""
    keys = {}
    for issued in review.state.issues:
        packet_id = issued.body["packet_id"]
        with Archive.open(review.folder.packet(packet_id)) as archive:
            document = archive.read(layout.SEALED, layout.MAX_JSON_BYTES)
        keys[packet_id] = seal.open_escrow(document, key.key_id, key.seal).as_dict()
    return author_steps.enter_reveal(review, key, events.STEWARD, keys)


def lost(review: Review, key: KeyPair, reason: str) -> Review:
    """Enter that nobody can open the seal. Refused as long as this steward's own box opens it."""
    for issued in review.state.issues:
        packet_id = issued.body["packet_id"]
        with Archive.open(review.folder.packet(packet_id)) as archive:
            document = archive.read(layout.SEALED, layout.MAX_JSON_BYTES)
        try:
            seal.open_seal(document, packet_id, seal.open_escrow(document, key.key_id, key.seal))
        except TrustError:
            break
    else:
        raise TrustError("E_PROTOCOL", "your own key opens every packet; reveal instead")
    body = {"reason": reason}
    return folder.enter(review, key, events.STEWARD, events.LOST, body, {"lost": "0" * 64})
