"""What the author does: preregister, issue a packet, reveal."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from counterproof.record.canonical import read_json, sha256_bytes
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import verify_plan
from counterproof_review.packet import build as builder
from counterproof_review.packet import canonical, layout, sealing
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.replay import Options, measure
from counterproof_review.packet.sealing import Sealing, Secrets
from counterproof_review.protocol import events, folder, machine, people, starts
from counterproof_review.protocol.folder import Review
from counterproof_review.trust import seal
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair

GATE_BLOCKS = 1
REPLAYED = "replayed"
# Simulated reviews of 6 blocks with 1 to 3 % noise whose A/A passed: at this share of a step none of 760 missed the delay,
# at half of it up to 30 % did.
LEAST_SALT = 0.10


def prereg(review: Review, key: KeyPair, store: Store, paths: StudyPaths) -> Review:
    """Enter the plan of a registered study, before any of its runs."""
    plan, plan_sha256, _ = verify_plan(paths)
    body = {
        "plan_sha256": plan_sha256,
        "runs": len(paths.run_folders()),
        "primary": {name: plan["primary"][name] for name in ("metric", "statistic", "sesoi")},
        "blocks": int(plan["blocks"]),
        "consistency_band": layout.CONSISTENCY_BAND,
        "starts": starts.facts(store, str(plan.get("experiment", ""))),
    }
    return folder.enter(review, key, events.AUTHOR, events.PREREG, body, {"plan": plan_sha256})


def issue(
    review: Review,
    key: KeyPair,
    store: Store,
    paths: StudyPaths,
    models: Sequence[Path],
    deadline_days: float,
    say: Callable[[str], None],
    progress: Callable[[dict[str, Any]], None],
) -> Review:
    """Build the sealed packet, replay it cold, and issue it.

    Raises TrustError E_PROTOCOL when it is not due, and whatever the cold replay raises: then nothing was issued.
    """
    before = review.state.issue
    stewards = [e for e in review.registry.entries if e.role == "steward" and e.revoked_at is None]
    escrow = {steward.keyid: steward.seal for steward in stewards}
    if not escrow:
        raise TrustError("E_ROLE", "no steward is registered who could keep the key in escrow")
    arms = tuple(read_json(paths.plan)["arms"])
    supersedes = before.body["packet_id"] if before else None
    sealed = Sealing(Secrets.fresh(arms), key, escrow, supersedes)
    with tempfile.TemporaryDirectory(prefix="issue-") as scratch:
        built = builder.build(paths.folder, out=Path(scratch) / "packet.rep.zip", sealed=sealed)
        body = _issue_body(built, key, store, paths, deadline_days, supersedes)
        _check_due(review, key, body)
        _check_worth(built, paths.name, say)
        cold_replay(built.path, Path(scratch) / "cold", models, say, progress)
        target = review.folder.packet(built.packet_id)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built.path, target)
    subjects = {f"packet/{built.packet_id}": built.root}
    try:
        return folder.enter(review, key, events.AUTHOR, events.ISSUE, body, subjects)
    except TrustError:
        target.unlink()
        raise


def cold_replay(
    packet: Path,
    place: Path,
    models: Sequence[Path],
    say: Callable[[str], None],
    progress: Callable[[dict[str, Any]], None],
) -> None:
    """The gate before ISSUE: the packet must run from its file alone, in an empty folder and home, network off."""
    say("cold replay of the packet before it is issued")
    with Archive.open(packet) as archive:
        measure(archive, Options(place, GATE_BLOCKS, tuple(models)), say, progress)


def _issue_body(
    built: builder.Built,
    key: KeyPair,
    store: Store,
    paths: StudyPaths,
    deadline_days: float,
    supersedes: str | None,
) -> dict[str, Any]:
    with Archive.open(built.path) as archive:
        document = archive.read(layout.SEALED, layout.MAX_JSON_BYTES)
        space = archive.sha256(layout.CHALLENGE)
    plan = read_json(paths.plan)
    record = people.of_record(key, Path(__file__).resolve().parent) | people.of_party(key, paths.folder)
    return {
        "packet_id": built.packet_id,
        "root": built.root,
        "claim_id": built.verification.packet["claim_id"],
        "commitment": seal.commitment_of(document),
        "escrow": list(seal.escrow_of(document)),
        "challenge_sha256": space,
        "supersedes": supersedes,
        "gate": REPLAYED,
        "deadline_days": deadline_days,
        "people": people.digests(built.packet_id, record),
        "starts": starts.facts(store, str(plan.get("experiment", ""))),
    }


def _check_worth(built: builder.Built, study: str, say: Callable[[str], None]) -> None:
    """Refuse what no review could end well for, and say when a reviewer's machine might not see the known delay."""
    if built.evidence_valid is not True:
        raise TrustError(
            "E_PROTOCOL",
            f"the study's own evidence {'is invalid' if built.evidence_valid is False else 'was never judged'}, so "
            "that a review of it could only end INVALID",
            details=[f"counterproof report {study}   says why; register another study once that is mended"],
        )
    share = built.salt_share
    if share is not None and share < LEAST_SALT:
        say(
            f"the known delay is {100 * share:.1f} % of a step here; below {100 * LEAST_SALT:.0f} % a reviewer's machine may "
            "miss it, which ends the review INVALID: a larger study.slowed_delay_us costs little"
        )


def _check_due(review: Review, key: KeyPair, body: dict[str, Any]) -> None:
    """Refuse before the cold replay takes its time."""
    seen = {role: count for role, count in review.heads().items() if role != events.AUTHOR}
    event = events.Event(
        events.AUTHOR, review.heads()[events.AUTHOR] + 2, events.ISSUE, body, key.key_id, seen=seen
    )
    machine.due(review.state, event)


def reveal(review: Review, key: KeyPair) -> Review:
    """Open every packet that was issued."""
    keys = {
        issued.body["packet_id"]: sealing.read_secrets(issued.body["packet_id"]).seal.as_dict()
        for issued in review.state.issues
    }
    return enter_reveal(review, key, events.AUTHOR, keys)


def enter_reveal(review: Review, key: KeyPair, role: str, keys: dict[str, dict[str, str]]) -> Review:
    """Enter the seals' keys, after they were tried: keys that open nothing are refused (E_COMMIT)."""
    for packet_id, found in keys.items():
        with Archive.open(review.folder.packet(packet_id)) as archive:
            document = archive.read(layout.SEALED, layout.MAX_JSON_BYTES)
        seal.open_seal(document, packet_id, seal.SealKeys.read(found))
    body = {"keys": keys}
    subjects = {"keys": sha256_bytes(canonical.encode(body))}
    return folder.enter(review, key, role, events.REVEAL, body, subjects)
