"""Outputs of a replay's arms against each other, while nobody knows yet which arm is which.

Only digests of outputs leave the reviewer's machine, and in `fast` mode two right arms may part at a near tie. So each
run that gave other tokens than an arm of its block says how many and at what margin, by the same code as the author's
own comparison (counterproof.measure.divergence), and each arm among them how far rounding alone moves its logits
here, by the author's own equivalence phase. What that makes of baseline and candidate follows when their names are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from counterproof.measure.divergence import diverge, near_tie
from counterproof.measure.equivalence import bits_of, rounding_threshold
from counterproof.measure.load import RunData

REQUESTS = 8  # of the first block, as many as a study's own equivalence phase has
FAST = "fast"


def against_others(runs: Sequence[RunData]) -> dict[tuple[int, str], dict[str, dict[str, Any]]]:
    """`{(block, arm): {other arm: {"compared", "identical", "margin"}}}`, the arm taken for the baseline.

    Arms with the very same outputs are left out. margin: the largest of the arm's top-1 margins, in logits, at the
    first tokens that differ; None where one of them was not recorded.
    """
    blocks: dict[int, list[RunData]] = {}
    for run in runs:
        blocks.setdefault(int(run.block or 0), []).append(run)
    found: dict[tuple[int, str], dict[str, dict[str, Any]]] = {}
    for block, members in blocks.items():
        for run in members:
            others = [other for other in members if _texts(other) != _texts(run)]
            found[block, run.arm] = {other.arm: _between(run, other) for other in others}
    return found


def _texts(run: RunData) -> list[str | None]:
    return [v if isinstance(v, str) else None for v in run.requests["output_sha256"]]


def _between(run: RunData, other: RunData) -> dict[str, Any]:
    seen = diverge([run], [other], None)
    margins = [difference.margin for difference in seen.differences]
    known = [margin for margin in margins if margin is not None]
    whole = bool(known) and len(known) == len(margins)
    return {"compared": seen.compared, "identical": seen.identical, "margin": max(known) if whole else None}


def rounding(run: RunData) -> dict[str, Any]:
    """What an arm's equivalence phase says: `threshold` in logits, and one digest of its logits in invariant mode."""
    return {"threshold": rounding_threshold(run), "invariant_sha256": bits_of(run), "reason": ""}


def harmless(
    baseline: Mapping[str, Any],
    candidate: Mapping[str, Any],
    moved: Mapping[str, Mapping[str, Any]],
    modes: Iterable[object],
) -> bool:
    """Whether two runs of a block whose outputs differ parted at near ties alone.

    baseline, candidate  their runs as END holds them
    moved                what `rounding` says, by opaque arm, of the same attempt
    modes                the two arms' numerics modes: invariant mode forgives nothing

    Whatever is not known makes it a wrong output: a failed request, a margin, a threshold.
    """
    seen = (baseline.get("against") or {}).get(candidate["arm"])
    if seen is None or any(mode != FAST for mode in modes):
        return False
    if baseline["failed_requests"] or candidate["failed_requests"] or seen["identical"] >= seen["compared"]:
        return False
    base, other = moved.get(baseline["arm"]), moved.get(candidate["arm"])
    if base is None or other is None or base["invariant_sha256"] != other["invariant_sha256"]:
        return False
    return near_tie(seen["margin"], base["threshold"])
