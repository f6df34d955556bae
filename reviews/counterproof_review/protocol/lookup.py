"""The verdict that a study's scope may rest on: read from `review/` beside the study, and believed only if it holds.

Everything is checked again: registry, ledgers, heads, packet, and the verdict is computed anew from them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from counterproof.errors import CounterproofError
from counterproof.record.canonical import sha256_file
from counterproof_review.protocol import bundle, folder, outcome
from counterproof_review.protocol.events import REVIEWER, STEWARD
from counterproof_review.trust import sample
from counterproof_review.trust.errors import TrustError
from counterproof_review.verdict import rule

NAME = "review"


def attach(study: Path, source: Path) -> Path:
    """Put a bundle beside its study. Raises TrustError E_PROTOCOL for the review of another plan; keeps no half."""
    place = study / NAME
    fresh = not place.exists()
    try:
        bundle.merge(place, source)
        _check_claim(folder.read(place), study)
    except CounterproofError:
        if fresh:
            shutil.rmtree(place, ignore_errors=True)
        raise
    return place


@dataclass(frozen=True)
class Standing:
    """The state of a study's review. `open_counterexamples` None: nobody searched; `sha256`: of verdict.json."""

    verdict: str
    reason: str
    open_counterexamples: int | None = None
    sha256: str | None = None


def standing_of(study: Path) -> Standing:
    """NO_REVIEW for a study without a finished review. Raises CounterproofError for one that does not hold."""
    place = study / NAME
    if not place.is_dir():
        return Standing(rule.NO_REVIEW, "nobody who took no part has replayed it")
    review = folder.read(place)
    _check_claim(review, study)
    if {entry.keyid for entry in review.registry.entries} & sample.key_ids():
        return Standing(rule.NO_REVIEW, "it is signed with the keys of the sample, which everybody has")
    signed = {event.role: event.body["sha256"] for event in review.state.verdicts}
    if not {REVIEWER, STEWARD} <= set(signed):
        missing = " and ".join(sorted({REVIEWER, STEWARD} - set(signed)))
        return Standing(rule.NO_REVIEW, f"its verdict is not signed by the {missing} yet")
    computed = outcome.compute(review)
    digest = signed[REVIEWER]
    path = place / folder.VERDICT
    if not path.is_file() or sha256_file(path) != digest or path.read_bytes() != outcome.encode(computed):
        raise TrustError("E_COMMIT", "verdict.json is not the verdict that was signed and that follows")
    challenge = computed["counterexamples"]
    searched = bool(challenge and challenge["searched"])
    return Standing(
        computed["verdict"], computed["reason"], challenge["inside"] if searched else None, digest
    )


def _check_claim(review: folder.Review, study: Path) -> None:
    issue = review.state.issue
    if issue is None or issue.body["claim_id"] != sha256_file(study / "plan.json"):
        raise TrustError("E_PROTOCOL", "the review is about another plan than this study's")
