"""What the reviewer does: commit, accept, measure, freeze, challenge, judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import InputError
from counterproof.record import atomic
from counterproof.record.canonical import sha256_bytes
from counterproof_review.challenge import claim as claims
from counterproof_review.challenge import declared, hunt
from counterproof_review.challenge.claim import Claim
from counterproof_review.packet import canonical, layout, surroundings
from counterproof_review.packet.content import read_object
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.verify import Verification
from counterproof_review.protocol import attempts, estimates, events, folder, machine, outcome, people
from counterproof_review.protocol.events import Event
from counterproof_review.protocol.folder import Review
from counterproof_review.trust import private
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair

SEARCH = "search"
_NONE = "0" * 64


def commit(review: Review, key: KeyPair) -> Review:
    """Draw the nonce that will set the schedule, and commit to it before there is a packet."""
    nonce, name = private.new_nonce()
    digest = machine.nonce_digest(nonce)
    body = {"nonce_sha256": digest, "kept_as": name}
    return folder.enter(review, key, events.REVIEWER, events.COMMIT, body, {"nonce": digest})


def accept(
    review: Review, key: KeyPair, place: Path, identity: Mapping[str, Any], *, independent: bool
) -> Review:
    """Accept the packet that stands. `identity`: of this machine; `independent`: the reviewer's declaration.

    Raises TrustError E_PROTOCOL, also when the reviewer is one of the people of the record.
    """
    issue = _issue(review)
    outcome.packet_of(review, issue.body["packet_id"])
    if review.state.commit is None:
        raise TrustError("E_PROTOCOL", "commit to a nonce first")
    body = {
        "packet_id": issue.body["packet_id"],
        "root": issue.body["root"],
        "nonce": private.nonce(review.state.commit.body["kept_as"]).hex(),
        "hardware": surroundings.hardware_class(identity),
        "independent": independent,
        "person": people.digests(issue.body["packet_id"], people.of_party(key, place)),
    }
    return folder.enter(review, key, events.REVIEWER, events.ACCEPT, body, {"packet": issue.body["root"]})


def measure(
    review: Review,
    key: KeyPair,
    blocks: int | None,
    models: Sequence[Path],
    say: Callable[[str], None],
    progress: Callable[[dict[str, Any]], None],
) -> tuple[Review, BaseException | None]:
    """One attempt: announced, measured, entered, whatever became of it. Returns its error, if it crashed."""
    review = close_cut_off(review, key)
    issue, state = _issue(review), review.state
    report = outcome.packet_of(review, issue.body["packet_id"])
    if state.accept is None:
        raise TrustError("E_PROTOCOL", "accept the packet first")
    available = report.packet["blocks"]
    wanted = available if blocks is None else blocks
    if not 1 <= wanted <= available:
        raise InputError(f"--blocks must be between 1 and {available}, not {wanted}")
    number = len(state.starts) + 1
    body = {"attempt": number, "root": report.root, "blocks": wanted}
    review = folder.enter(review, key, events.REVIEWER, events.START, body, {"packet": report.root})
    nonce = machine.attempt_nonce(bytes.fromhex(state.accept.body["nonce"]), number)
    place = review.folder.attempt(number)
    packet = review.folder.packet(issue.body["packet_id"])
    end, error = attempts.run(packet, place, number, nonce, wanted, models, say, progress)
    return _enter_end(review, key, end), error


def close_cut_off(review: Review, key: KeyPair) -> Review:
    """Enter the end of an attempt that was killed: it counts, with the runs it had reported."""
    running = review.state.running
    if running is None:
        return review
    number = running.body["attempt"]
    place = review.folder.attempt(number)
    end = attempts.ended(number, place, attempts.CRASHED, "cut off: found without an end")
    attempts.clear(place)
    return _enter_end(review, key, end)


def _enter_end(review: Review, key: KeyPair, end: dict[str, Any]) -> Review:
    subjects = {"estimates": end["estimates_sha256"] or _NONE}
    return folder.enter(review, key, events.REVIEWER, events.END, end, subjects)


def show_arm(review: Review, key: KeyPair, arm: str) -> tuple[Review, dict[str, Any]]:
    """An arm's configuration; that it was read is entered first, and lowers the blinding level."""
    issue = _issue(review)
    report = outcome.packet_of(review, issue.body["packet_id"])
    if arm not in report.arms:
        raise InputError(
            f"'{arm}' is no arm of this packet", details=[f"arms: {', '.join(sorted(report.arms))}"]
        )
    review = folder.enter(review, key, events.REVIEWER, events.UNBLIND, {"arm": arm}, {"packet": report.root})
    with Archive.open(review.folder.packet(issue.body["packet_id"])) as archive:
        return review, read_object(archive, layout.arm_path(arm))


def ask(review: Review, key: KeyPair, text: str) -> Review:
    """A question; the only answer is a new packet, whose schedule a new nonce will set."""
    nonce, name = private.new_nonce()
    body = {
        "packet_id": _issue(review).body["packet_id"],
        "text": text,
        "nonce_sha256": machine.nonce_digest(nonce),
        "kept_as": name,
    }
    return folder.enter(
        review, key, events.REVIEWER, events.QUESTION, body, {"question": sha256_bytes(text.encode())}
    )


def freeze(
    review: Review,
    key: KeyPair,
    guess: str,
    confidence: float,
    deviations: Sequence[str] = (),
    cause: str | None = None,
) -> Review:
    """Freeze the estimates of all attempts and the guess which arm the candidate is."""
    review = close_cut_off(review, key)
    report = outcome.packet_of(review, _issue(review).body["packet_id"])
    body = estimates.body(review.state, sorted(report.arms), guess, confidence, deviations, cause)
    digest = sha256_bytes(canonical.encode(body))
    return folder.enter(review, key, events.REVIEWER, events.FREEZE, body, {"estimates": digest})


@dataclass(frozen=True)
class Attack:
    """What a search for counterexamples needs: the packet, the opened claim, and a seed that neither side chose."""

    report: Verification
    claim: Claim
    seed: int


def attack(review: Review) -> Attack:
    """What is to be attacked. Raises TrustError E_PROTOCOL before the reveal, after a challenge, and for a seal that
    was not opened to what was sealed."""
    state, issue = review.state, _issue(review)
    if state.reveal is None or state.accept is None:
        raise TrustError("E_PROTOCOL", "the claim can be challenged once the seal is opened, not before")
    if state.challenge is not None:
        raise TrustError("E_PROTOCOL", "the claim was challenged already; a review has one challenge")
    opened = outcome.open_all(review)
    if opened.content is None:
        raise TrustError(
            "E_PROTOCOL", "the seal was not opened to what was sealed: there is no claim to attack"
        )
    report = outcome.packet_of(review, issue.body["packet_id"])
    seed = hunt.seed_of(report.root, bytes.fromhex(state.accept.body["nonce"]))
    return Attack(report, claims.of_results(report, opened.content), seed)


def challenge(review: Review, key: KeyPair, report: Mapping[str, Any] | None, reason: str) -> Review:
    """Enter the report of a counterexample search, or (None) why none was made: then the claim stays open to one."""
    scope = outcome.packet_of(review, _issue(review).body["packet_id"]).documents[layout.SCOPE]
    body: dict[str, Any] = {"searched": report is not None, "reason": reason, "inside": 0, "outside": 0}
    subjects = {"search": _NONE}
    if report is not None:
        flips = [one for one in report["confirmed"] if one["flip"]]
        inside = sum(declared.inside(scope, one["cell"]) for one in flips)
        data = canonical.encode(dict(report))
        body |= {
            "inside": inside,
            "outside": len(flips) - inside,
            "cells_tried": report["cells_tried"],
            "corners_not_tried": report["corners_not_tried"],
            "says": report["says"],
            "left_of_scope": [one["left_of_scope"] for one in flips if "left_of_scope" in one],
            "report_sha256": sha256_bytes(data),
        }
        subjects = {"search": sha256_bytes(data)}
    found = folder.enter(review, key, events.REVIEWER, events.CHALLENGE, body, subjects)
    if report is not None:
        atomic.write_bytes(review.folder.root / folder.CHALLENGE, data)
    return found


def verdict(review: Review, key: KeyPair, role: str) -> tuple[Review, dict[str, Any]]:
    """Compute the verdict and sign it, as reviewer first and then as steward.

    The steward computes it anew. Raises TrustError E_COMMIT when that gives other bytes than the reviewer signed.
    """
    computed = outcome.compute(review)
    data = outcome.encode(computed)
    digest = sha256_bytes(data)
    for other in review.state.verdicts:
        if other.body["sha256"] != digest:
            raise TrustError(
                "E_COMMIT", f"the {other.role} signed another verdict than follows from the record"
            )
    body = {"verdict": computed["verdict"], "sha256": digest}
    review = folder.enter(review, key, role, events.VERDICT, body, {folder.VERDICT: digest})
    atomic.write_bytes(review.folder.root / folder.VERDICT, data)
    return review, computed


def _issue(review: Review) -> Event:
    if review.state.issue is None:
        raise TrustError("E_PROTOCOL", "no packet was issued yet")
    return review.state.issue
