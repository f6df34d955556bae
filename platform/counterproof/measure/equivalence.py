"""The equivalence phase: both arms in invariant mode, bitwise, and the baseline's own sensitivity to batching.

Equal means: for every request of the phase the two runs' events of kind `equivalence_logits` name the same output
tokens and the same sha256 over the raw fp32 logits of all of them. The event `batch_logit_difference` of the
baseline gives the largest difference of a logit, in its own mode, between computing the same prompts alone and
together; it is 0 for a baseline that runs in invariant mode, and then any differing token is a wrong output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from counterproof.measure.load import RunData, StudyData
from counterproof.record import canonical

LOGITS = "equivalence_logits"
BATCH = "batch_logit_difference"


@dataclass(frozen=True)
class Equivalence:
    """`equal` None: not shown either way, `reason` says why. `threshold`: 2 x the batch logit difference."""

    equal: bool | None
    reason: str
    requests: int = 0
    tokens: int = 0
    batch_logit_difference: float | None = None

    @property
    def threshold(self) -> float | None:
        """Margins below it may tip by rounding; None where it was not measured."""
        return None if self.batch_logit_difference is None else 2.0 * self.batch_logit_difference

    def facts(self) -> dict[str, Any]:
        return {**vars(self), "threshold": self.threshold}


def judge_equivalence(study: StudyData) -> Equivalence:
    """Compare the two arms of the phase. Missing arms, requests or logits never count as equal."""
    baseline, candidate = study.equivalence.get("baseline"), study.equivalence.get("candidate")
    if baseline is None or candidate is None:
        missing = [arm for arm in ("baseline", "candidate") if arm not in study.equivalence]
        return Equivalence(None, f"no sealed equivalence run of {' and '.join(missing)}")
    difference = _batch_difference(baseline)
    if (study.plan.get("factor") or {}).get("lossless") is False:
        reason = "the change may move outputs: they are held to a quality bound, not to equality"
        return Equivalence(None, reason, batch_logit_difference=difference)
    for run in (baseline, candidate):
        mode = run.effective.get("numerics.mode")
        if mode != "invariant":
            reason = f"{run.name} ran in numerics mode {mode}, not invariant"
            return Equivalence(None, reason, batch_logit_difference=difference)
    left, right = _digests(baseline), _digests(candidate)
    if left is None or right is None or not left:
        return Equivalence(None, "the phase recorded no logits", batch_logit_difference=difference)
    tokens = sum(digest[0] for digest in left.values())
    if left.keys() != right.keys():
        reason = "the two arms did not record the same requests"
        return Equivalence(None, reason, len(left), tokens, batch_logit_difference=difference)
    problems = []
    for index in sorted(left):
        if left[index][:2] != right[index][:2]:
            problems.append(f"request {index}: output tokens differ")
        elif left[index] != right[index]:
            problems.append(f"request {index}: logits differ")
    reason = "; ".join(problems[:5])
    return Equivalence(not problems, reason, len(left), tokens, difference)


def rounding_threshold(run: RunData) -> float | None:
    """The margin below which tokens may tip by rounding, from a run of the phase; None where it was not measured."""
    return Equivalence(None, "", batch_logit_difference=_batch_difference(run)).threshold


def bits_of(run: RunData) -> str | None:
    """One sha256 over the tokens and logits of a run of the phase; None where it recorded none in invariant mode."""
    found = _digests(run)
    if not found or run.effective.get("numerics.mode") != "invariant":
        return None
    return canonical.sha256_json([[index, *found[index]] for index in sorted(found)])


def _digests(run: RunData) -> dict[int, tuple[int, str, str]] | None:
    """Per request (tokens, sha256 of the tokens, sha256 of the logits); None when an event is incomplete."""
    found: dict[int, tuple[int, str, str]] = {}
    for event in run.events:
        if event.get("kind") != LOGITS:
            continue
        try:
            index, n = int(event["request_index"]), int(event["tokens"])
            tokens, logits = str(event["tokens_sha256"]), str(event["logits_sha256"])
        except (KeyError, TypeError, ValueError):
            return None
        if n < 1 or int(event.get("logit_rows", n)) != n or index in found:
            return None
        found[index] = (n, tokens, logits)
    return found


def _batch_difference(run: RunData) -> float | None:
    values = [e.get("max_abs") for e in run.events if e.get("kind") == BATCH]
    numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v) and v >= 0]
    return max(numbers) if numbers and len(numbers) == len(values) else None
