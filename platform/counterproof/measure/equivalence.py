"""The equivalence phase: both arms in invariant mode, bitwise, and the baseline's own sensitivity to batching.

Equal means: the same requests, the same output tokens, the same log probabilities and margins bit for bit, and the
same sha256 over the raw logits of every request, as the runs' events of kind `equivalence_logits` name it. The
event `batch_logit_difference` of the baseline gives the largest difference of a logit, in fast mode, between
computing the same prompts alone and together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterproof.measure.load import RunData, StudyData

LOGITS = "equivalence_logits"
BATCH = "batch_logit_difference"


@dataclass(frozen=True)
class Equivalence:
    """`equal` None: not shown either way, `reason` says why. `threshold`: 2 x the batch logit difference."""

    equal: bool | None
    reason: str
    requests: int = 0
    tokens: int = 0
    logits_compared: int = 0
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
    for run in (baseline, candidate):
        mode = run.effective.get("numerics.mode")
        if mode != "invariant":
            reason = f"{run.name} ran in numerics mode {mode}, not invariant"
            return Equivalence(None, reason, batch_logit_difference=difference)
    n = len(baseline.requests)
    if n == 0 or len(candidate.requests) == 0:
        return Equivalence(None, "the phase has no requests", batch_logit_difference=difference)
    left, right = _logits(baseline), _logits(candidate)
    wanted = {int(i) for i in baseline.requests["request_index"]}
    if set(left) != wanted or set(right) != wanted:
        reason = "not every request of the phase has its logits recorded in both arms"
        return Equivalence(None, reason, n, len(baseline.tokens), 0, difference)
    problems = _differences(baseline, candidate)
    problems += [f"request {i}: logits differ" for i in sorted(wanted) if left[i] != right[i]]
    reason = "; ".join(problems[:5])
    return Equivalence(not problems, reason, n, len(baseline.tokens), len(wanted), difference)


def _differences(a: RunData, b: RunData) -> list[str]:
    columns = ["request_index", "prompt_sha256", "output_sha256", "output_tokens", "status"]
    if not a.requests[columns].equals(b.requests[columns]):
        return ["requests or their output tokens differ"]
    if (a.requests["status"] != "ok").any():
        return ["a request failed"]
    for column in ("request_index", "token_index", "token_id"):
        if not np.array_equal(a.tokens[column].to_numpy(), b.tokens[column].to_numpy()):
            return [f"tokens differ in {column}"]
    for column in ("logprob", "margin"):
        x, y = (run.tokens[column].to_numpy(dtype=np.float64) for run in (a, b))
        if not np.array_equal(x.view(np.int64), y.view(np.int64)):
            return [f"tokens differ in {column}, bit for bit"]
    return []


def _logits(run: RunData) -> dict[int, str]:
    return {int(e["request_index"]): str(e["logits_sha256"]) for e in run.events if e.get("kind") == LOGITS}


def _batch_difference(run: RunData) -> float | None:
    values = [e.get("max_abs") for e in run.events if e.get("kind") == BATCH]
    numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v) and v >= 0]
    return max(numbers) if numbers and len(numbers) == len(values) else None
