"""Reserve blocks: planned and sealed before the first run, called up only while A/A is too imprecise to judge.

A neighbour on the machine can spoil one block of six, and the A/A interval then leaves its band although nothing is
biased. Such a study is not repeated, which would be a choice of the luckier one: it goes on, by a rule that was
registered with it. The rule sees the two identical arms and no candidate, stops at the registered number of blocks,
and every block that was run counts. (Two-stage designs with a stopping rule blind to the effect: C. Stein, "A
two-sample test for a linear hypothesis whose power is independent of the variance", Ann. Math. Stat. 16, 1945.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from counterproof.errors import EvidenceError

STEP = 2
EXTENDED = "extended"


def blocks_in_force(plan: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> int:
    """Blocks the study has to complete now. Raises EvidenceError for a journal that calls up what is not planned."""
    blocks, most = int(plan["blocks"]), planned_at_most(plan)
    for event in events:
        if event["kind"] != EXTENDED:
            continue
        if event["blocks"] != next_extent(plan, blocks):
            raise EvidenceError(
                f"the journal extends the study from {blocks} to {event['blocks']} blocks; "
                f"the plan allows steps of {STEP} up to {most}"
            )
        blocks = int(event["blocks"])
    return blocks


def planned_at_most(plan: Mapping[str, Any]) -> int:
    """All blocks of the plan, reserve included."""
    return int(plan["blocks"]) + int(plan.get("reserve_blocks", 0))


def next_extent(plan: Mapping[str, Any], blocks: int) -> int | None:
    """How many blocks the study has after its next extension; None when the reserve is used up."""
    most = planned_at_most(plan)
    return min(blocks + STEP, most) if blocks < most else None


def a_a_imprecise(comparison: Mapping[str, Any]) -> bool:
    """Whether A/A is refuted for being imprecise, not for being biased."""
    return any(
        check["check"] == "a_a" and check["passed"] is False and bool(check.get("imprecise"))
        for check in comparison["validity"]
    )


def why_extend(comparison: Mapping[str, Any]) -> str | None:
    """The reason to call up reserve blocks, or None: everything else holds, and A/A is imprecise but not biased."""
    if not comparison["final"]:
        return None
    refuted = [check for check in comparison["validity"] if check["passed"] is False]
    if [check["check"] for check in refuted] != ["a_a"] or not refuted[0].get("imprecise"):
        return None
    return str(refuted[0]["detail"])
