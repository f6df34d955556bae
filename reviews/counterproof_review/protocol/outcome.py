"""The verdict of a review, computed from what was signed and the packet alone: whoever computes it gets these bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from counterproof_review.packet import canonical, layout, sealing
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.verify import Verification, verify
from counterproof_review.protocol import attempts, evidence
from counterproof_review.protocol.folder import Review
from counterproof_review.protocol.machine import State
from counterproof_review.trust import seal
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.seal import SealKeys
from counterproof_review.verdict import rule
from counterproof_review.verdict.rule import Rule, Verdict

SCHEMA = "counterproof-verdict/1"


@dataclass(frozen=True)
class Opened:
    """What the reveal opened. `content` None: nobody can. `faults`: what was wrong with it."""

    content: dict[str, Any] | None
    faults: tuple[str, ...] = ()


def packet_of(review: Review, packet_id: str) -> Verification:
    """The packet as it was issued. Raises PacketError, or TrustError E_PROTOCOL when its file is not here."""
    path = review.folder.packet(packet_id)
    if not path.is_file():
        raise TrustError(
            "E_PROTOCOL", f"the packet {packet_id} is not in {path.parent}; import a bundle with it"
        )
    issue = next(i for i in review.state.issues if i.body["packet_id"] == packet_id)
    report = Verification()
    with Archive.open(path) as archive:
        verify(archive, report, root=issue.body["root"])
    if report.signature is None or report.signature.author != issue.signer:
        raise TrustError("E_SIGNATURE", "the packet was signed by somebody else than who issued it")
    return report


def open_all(review: Review) -> Opened:
    """Open every packet that was issued with the keys of the reveal; the content is that of the last."""
    state = review.state
    if state.reveal is None:
        return Opened(None)
    found: list[str] = []
    content: dict[str, Any] | None = None
    for issue in state.issues:
        packet_id = issue.body["packet_id"]
        report = packet_of(review, packet_id)
        try:
            keys = SealKeys.read(state.reveal.body["keys"][packet_id])
            content = _open(review, report, keys, issue.body["commitment"])
        except (TrustError, PacketError, KeyError) as error:
            content = None
            found.append(f"packet {packet_id} was not opened to what was sealed: {error}")
    return Opened(content, tuple(found))


def _open(
    review: Review, report: Verification, keys: SealKeys, commitment: Mapping[str, str]
) -> dict[str, Any]:
    packet_id = report.packet["packet_id"]
    with Archive.open(review.folder.packet(packet_id)) as archive:
        document = archive.read(layout.SEALED, layout.MAX_JSON_BYTES)
    if seal.commitment_of(document) != dict(commitment):
        raise TrustError("E_COMMIT", "the seal is not the one whose commitment was issued")
    text = seal.open_seal(document, packet_id, keys)
    return sealing.read_content(text, packet_id, set(report.arms), report.packet["blocks"])


def compute(review: Review) -> dict[str, Any]:
    """verdict.json. Raises TrustError E_PROTOCOL before there is anything to judge."""
    state = review.state
    if state.issue is None or (state.reveal is None and state.lost is None):
        raise TrustError("E_PROTOCOL", "a verdict needs an opened seal, or one that nobody can open")
    report = packet_of(review, state.issue.body["packet_id"])
    opened = open_all(review)
    judged, preregistered = judge(state, report, opened)
    return document(state, report, opened, judged, preregistered)


def judge(state: State, report: Verification, opened: Opened) -> tuple[Verdict, Rule]:
    """The verdict and the rule it was judged by."""
    preregistered = evidence.rule_of(report)
    if opened.faults:
        # An opening that does not fit what was committed is a breach, not a lost key.
        return Verdict(rule.INVALID, "; ".join(opened.faults)), preregistered
    return rule.judge(evidence.assemble(state, report, opened.content), preregistered), preregistered


def document(
    state: State, report: Verification, opened: Opened, judged: Verdict, preregistered: Rule
) -> dict[str, Any]:
    """verdict.json: the verdict first, then everything that it rests on."""
    arms = sorted(report.arms)
    issue, freeze = state.issue, state.freeze
    guess = dict(freeze.body["guess"]) if freeze else None
    if guess and opened.content:
        guess["right"] = guess["arm"] == opened.content["arms"]["candidate"]
    ends = [event.body for event in state.ends]
    counts = evidence.output_counts(report, ends, opened.content) if opened.content else None
    return {
        "schema": SCHEMA,
        "verdict": judged.verdict,
        "grows": judged.grows,
        "reason": judged.reason,
        "claim_id": report.packet["claim_id"],
        "packet_id": report.packet["packet_id"],
        "root": report.root,
        "theta_author": _ratio(judged.theta_author),
        "theta_replay": _ratio(judged.theta_replay),
        "bounds": [_ratio(judged.lower), _ratio(judged.upper)],
        "author_bounds": [_ratio(value) for value in judged.author_bounds] if judged.author_bounds else None,
        "difference": [_ratio(value) for value in judged.difference] if judged.difference else None,
        "band": preregistered.band,
        "sesoi": preregistered.sesoi,
        "stall_bound": judged.stall_bound,
        "stall_sentence": _stall_sentence(judged.stall_bound, opened.content is not None),
        "outputs": counts,
        "outputs_sentence": _outputs_sentence(counts, opened.content is not None),
        "trace": [[name, fired] for name, fired in judged.trace],
        "scope": report.documents[layout.SCOPE],
        "replay_hardware": sorted({e.body["hardware"] for e in state.ends if e.body["hardware"]}),
        "level": state.level,
        "guess": guess,
        "questions": len(state.questions),
        "packets": [event.body["packet_id"] for event in state.issues],
        "attempts": attempts.summary(ends, arms),
        "deviations": list(freeze.body["deviations"]) if freeze else [],
        "counterexamples": dict(state.challenge.body) if state.challenge else None,
        "starts": dict(issue.body["starts"]) if issue else None,
        "faults": list(state.faults),
    }


def encode(verdict: Mapping[str, Any]) -> bytes:
    """The bytes of verdict.json, whose sha256 is signed."""
    return canonical.encode(dict(verdict))


def _ratio(log_ratio: float | None) -> float | None:
    """A gain in log units as a ratio: 1.1 is ten percent better."""
    return None if log_ratio is None or not math.isfinite(log_ratio) else math.exp(log_ratio)


def _outputs_sentence(counts: Mapping[str, int] | None, opened: bool) -> str:
    if not opened:
        return "outputs were not compared: the seal was not opened to what was sealed"
    if counts is None:
        return "outputs were not compared: the change is not declared lossless, or no block was replayed"
    return (
        f"outputs of candidate and baseline: the same in {counts['identical']} of {sum(counts.values())} blocks, parted "
        f"by rounding alone in {counts['near_ties']}, wrong in {counts['wrong']}"
    )


def _stall_sentence(bound: float | None, opened: bool) -> str:
    if bound is None and not opened:
        return "the seal was not opened to what was sealed, so nothing bounds how often the candidate stalls"
    if bound is None:
        return "no block was replayed, so nothing bounds how often the candidate stalls"
    return f"even if no block stalled, the candidate may stall in up to {100 * bound:.0f} % of blocks (95 %)"
