"""From a replay's frozen numbers and the author's opened ones to the answer.

What was measured is summarised per opaque pair first; only then is the arm map used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from counterproof.measure.interval import log_ratios
from counterproof_review.packet import agreement
from counterproof_review.packet.agreement import Agreement, Estimate

NOTE = (
    "This is a replay of an open packet (L0): it can say CONSISTENT or NOT CONSISTENT with what the author "
    "measured. It is no replication verdict; that needs results that were sealed until the estimates were frozen."
)
BLIND_NOTE = (
    "This is a replay of a sealed packet outside a review: it says what was measured and nothing about the claim. "
    "An estimate that is frozen in a review is what a verdict is made of."
)
_CONFIDENCE = 0.95


def per_block(runs: Sequence[Mapping[str, Any]], blocks: int) -> dict[str, list[float | None]]:
    """`{opaque arm: [value of each block]}` from the runs of a replay."""
    values: dict[str, list[float | None]] = {run["arm"]: [None] * blocks for run in runs}
    for run in runs:
        values[run["arm"]][run["block"]] = run["value"]
    return values


def pairs(values: Mapping[str, Sequence[float | None]]) -> list[dict[str, Any]]:
    """Every opaque pair with its per-block log ratios and 95 % interval, names in alphabetical order."""
    rows = []
    for low, high in combinations(sorted(values), 2):
        ratios = log_ratios(values[low], values[high])
        rows.append({"numerator": low, "denominator": high, **described(ratios)})
    return rows


def described(ratios: Sequence[float | None]) -> dict[str, Any]:
    """A sample of log ratios for the record: values, mean, sd, ratio and its 95 % interval (None if undefined)."""
    found = _estimate(ratios)
    interval = found.interval(_CONFIDENCE) if found else None
    return {
        "log_ratios": list(ratios),
        "n": sum(value is not None for value in ratios),
        "mean": found.mean if found else None,
        "sd": found.sd if found else None,
        "ratio": math.exp(found.mean) if found and found.mean is not None else None,
        "ratio_ci": [math.exp(end) for end in interval] if interval else None,
    }


def judge(
    results: Mapping[str, Any],
    values: Mapping[str, Sequence[float | None]],
    band: float,
    *,
    same_hardware: bool,
) -> tuple[Agreement, dict[str, Any]]:
    """The answer, and per arm the author's and the replay's ratio to the baseline.

    `values`: the replay's, by opaque arm. A ratio that is missing on either side makes INCONCLUSIVE.
    """
    arms = results["arms"]
    here = {
        arm: log_ratios(values[name], values[arms["baseline"]])
        for arm, name in arms.items()
        if arm != "baseline"
    }
    table = {
        arm: {"author": described(results["log_ratios"][arm]), "replay": described(ratios)}
        for arm, ratios in here.items()
    }
    answer = _answer(results, here, band)
    if answer.verdict == agreement.NOT_CONSISTENT and not same_hardware:
        reason = f"{answer.reason}; but this is other hardware, where another ratio contradicts nothing"
        answer = Agreement(agreement.INCONCLUSIVE, reason, answer.difference, answer.low, answer.high)
    return answer, table


def outputs_equal(results: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many requests gave the very same tokens as in the author's run of the same arm and block."""
    theirs = {(run["arm"], run["block"]): run["outputs_sha256"] for run in results["runs"]}
    same = total = 0
    for run in runs:
        for ours, author in zip(run["outputs_sha256"], theirs[(run["arm"], run["block"])], strict=True):
            total += 1
            same += ours is not None and ours == author
    return {"equal": same, "requests": total}


def _answer(results: Mapping[str, Any], here: Mapping[str, Sequence[float | None]], band: float) -> Agreement:
    if results["evidence_valid"] is False:
        return Agreement(
            agreement.INCONCLUSIVE, "the author's own evidence is invalid, so there is nothing to agree with"
        )
    complete = {arm: _present(ratios) for arm, ratios in here.items()}
    author = _present(results["log_ratios"]["candidate"])
    if author is None or any(ratios is None for ratios in complete.values()):
        return Agreement(
            agreement.INCONCLUSIVE, "a run has no value of the primary metric, so its block has no ratio"
        )
    same, delayed = complete["again"], complete["slowed"]
    slower_is_more = results["primary"]["better"] == "lower"
    fault = agreement.controls(same or [], delayed, slower_is_more)
    answer = fault or agreement.agree(author, complete["candidate"] or [], band)
    decided = answer.verdict in (agreement.CONSISTENT, agreement.NOT_CONSISTENT)
    if decided and results["evidence_valid"] is None:
        reason = f"the author's own evidence was never judged; {answer.reason}"
        return Agreement(agreement.INCONCLUSIVE, reason, answer.difference, answer.low, answer.high)
    return answer


def _present(ratios: Sequence[float | None]) -> list[float] | None:
    present = [value for value in ratios if value is not None]
    return present if len(present) == len(ratios) else None


def _estimate(ratios: Sequence[float | None]) -> Estimate | None:
    present = _present(ratios)
    return None if present is None else agreement.estimate(present)
