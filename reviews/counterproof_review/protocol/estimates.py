"""What is frozen: ratios of every opaque pair over all blocks of all attempts, before anybody knows which arm is which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterproof.measure.noise import a_a_gate
from counterproof_review.packet import judgement
from counterproof_review.protocol import attempts
from counterproof_review.protocol.machine import State
from counterproof_review.trust.errors import TrustError


def pairs(state: State, arms: Sequence[str]) -> list[dict[str, Any]]:
    """Every pair's estimate as FREEZE holds it (without the single values, which stand in the ENDs)."""
    found = attempts.observations([event.body for event in state.ends], arms)
    values = {arm: [one[arm]["value"] for one in found] for arm in arms}
    return [
        {name: value for name, value in row.items() if name != "log_ratios"}
        for row in judgement.pairs(values)
    ]


def all_apart(state: State, arms: Sequence[str], band: float) -> bool:
    """Whether no two arms agree within `band` (a fraction), so that A/A fails whichever two are equal.

    It looks at every pair alike and so tells nothing about which arm is which. False below six blocks.
    """
    found = attempts.observations([event.body for event in state.ends], arms)
    values = {arm: [one[arm]["value"] for one in found] for arm in arms}
    gates = [a_a_gate(row["log_ratios"], band).passed for row in judgement.pairs(values)]
    return bool(gates) and all(passed is False for passed in gates)


def body(
    state: State,
    arms: Sequence[str],
    guess: str,
    confidence: float,
    deviations: Sequence[str] = (),
    cause: str | None = None,
) -> dict[str, Any]:
    """The body of FREEZE.

    guess       the opaque name of the arm that the reviewer takes for the candidate, `confidence` from 0 to 1
    deviations  what was done otherwise than the protocol says, in words
    cause       why a block had stalled, when the extension was run

    Raises TrustError E_PROTOCOL for a guess that names no arm, or a confidence out of range.
    """
    if guess not in arms:
        raise TrustError("E_PROTOCOL", f"'{guess}' is no arm", details=[f"arms: {', '.join(sorted(arms))}"])
    if not 0.0 <= confidence <= 1.0:
        raise TrustError("E_PROTOCOL", f"a confidence lies between 0 and 1, not at {confidence}")
    if state.issue is None:
        raise TrustError("E_PROTOCOL", "no packet was issued")
    return {
        "packet_id": state.issue.body["packet_id"],
        "root": state.issue.body["root"],
        "attempts": attempts.summary([event.body for event in state.ends], arms),
        "pairs": pairs(state, arms),
        "exclusions": [],
        "deviations": list(deviations),
        "cause": cause,
        "guess": {"arm": guess, "confidence": confidence},
        "level": state.level,
    }


def faults(state: State, arms: Sequence[str]) -> list[str]:
    """What is wrong with FREEZE itself: other numbers than the attempts gave, another level, an exclusion."""
    if state.freeze is None:
        return ["nothing was frozen"]
    frozen: Mapping[str, Any] = state.freeze.body
    found = []
    ends = [event.body for event in state.ends]
    if frozen.get("pairs") != pairs(state, arms) or frozen.get("attempts") != attempts.summary(ends, arms):
        found.append("the frozen estimates do not follow from the attempts")
    if frozen.get("exclusions") != []:
        found.append("blocks were excluded, which the packet does not allow")
    if frozen.get("level") != state.level:
        found.append("the frozen blinding level is not the one that was kept")
    return found
