"""From frozen attempts and opened results to what the verdict rule looks at. Pure: plain data in, Evidence out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from counterproof_review.packet import layout, one_factor, outputs, schedule
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.verify import Verification
from counterproof_review.protocol import attempts, estimates, machine
from counterproof_review.protocol.attempts import Observation
from counterproof_review.protocol.machine import State
from counterproof_review.verdict.rule import Evidence, Rule

_NOTHING: tuple[float, ...] = ()


def rule_of(report: Verification) -> Rule:
    """What the packet preregistered."""
    prereg = report.documents[layout.PREREG]
    return Rule(sesoi=float(prereg["primary"]["sesoi"] or 0.0), band=float(prereg["consistency_band"]))


def assemble(state: State, report: Verification, opened: Mapping[str, Any] | None) -> Evidence:
    """The evidence of a review. `opened`: the sealed content, None when nobody could open it."""
    arms = sorted(report.arms)
    ends = [event.body for event in state.ends]
    faults = [*state.faults, *estimates.faults(state, arms), *_order_faults(state, report)]
    if report.documents[layout.PREREG]["primary"]["sesoi"] is None:
        faults.append("no smallest effect of interest was preregistered")
    if opened is None:
        return Evidence(_NOTHING, _NOTHING, _NOTHING, _NOTHING, None, opened=False, faults=faults)
    found = attempts.observations(ends, arms)
    names: Mapping[str, str] = opened["arms"]
    faults += _opened_faults(report, opened)
    sign = 1.0 if opened["primary"].get("better") == "higher" else -1.0
    author = [math.nan if v is None else sign * v for v in opened["log_ratios"].get("candidate", [])]
    hardware = {body["hardware"] for body in ends if body["hardware"] is not None}
    same = hardware == {report.documents[layout.SCOPE]["hardware"]}
    if len(hardware) > 1:
        faults.append("the attempts ran on different classes of hardware")
    return Evidence(
        author=author,
        replay=[sign * _ratio(one, names["candidate"], names["baseline"], "value") for one in found],
        again=[_ratio(one, names["again"], names["baseline"], "value") for one in found],
        salt=[_ratio(one, names["slowed"], names["baseline"], "step_ms") for one in found],
        salt_expected=_expected(found, names["baseline"], opened.get("salt")),
        lengths=_lengths(found, arms, names["baseline"]),
        outputs_equal=outputs_equal(report, ends, opened),
        arms_differ=_differ(found, names),
        faults=faults,
        counterexamples=int(state.challenge.body["inside"]) if state.challenge else 0,
        same_hardware=same,
        same_regime=same or same_regime(found, names, opened),
        extended=_extended(state),
    )


def _ratio(one: Observation, arm: str, over: str, field: str) -> float:
    above, below = one[arm][field], one[over][field]
    if above is None or below is None or above <= 0 or below <= 0:
        return math.nan
    return math.log(above / below)


def _expected(
    found: Sequence[Observation], baseline: str, salt: Mapping[str, Any] | None
) -> list[float] | None:
    """What the disclosed delay of every step gives, as a log ratio of step times, block by block."""
    delay = salt.get("delay_us") if isinstance(salt, Mapping) else None
    if type(delay) not in (int, float) or not delay or delay <= 0:
        return None
    steps = [one[baseline]["step_ms"] for one in found]
    return [math.log1p(delay / 1000 / step) if step else math.nan for step in steps]


def _lengths(found: Sequence[Observation], arms: Sequence[str], baseline: str) -> list[float]:
    """Output tokens of each arm over the baseline's, over all blocks."""
    totals = {arm: sum(one[arm]["output_tokens"] for one in found) for arm in arms}
    if not found:
        return []
    return [
        totals[arm] / totals[baseline] if totals[baseline] else math.nan for arm in arms if arm != baseline
    ]


def outputs_equal(
    report: Verification, ends: Sequence[Mapping[str, Any]], opened: Mapping[str, Any]
) -> bool | None:
    """Whether no block has a wrong output (see `output_counts`); None where nothing was to be compared."""
    found = output_counts(report, ends, opened)
    return None if found is None else found["wrong"] == 0


def output_counts(
    report: Verification, ends: Sequence[Mapping[str, Any]], opened: Mapping[str, Any]
) -> dict[str, int] | None:
    """How many blocks gave the same tokens for candidate and baseline (`identical`), other tokens after a near tie of
    fast mode alone (`near_ties`), and other tokens that rounding does not explain (`wrong`).

    None for a change not called lossless. `ends`: bodies of END; by the rule of packet/outputs.py. What rounding does to
    an arm holds for this machine, so that one attempt that measured it speaks for those that were cut off before.
    """
    found = attempts.observations(ends, sorted(report.arms))
    if not found or not (opened["factor"] or {}).get("lossless"):
        return None
    names = opened["arms"]["baseline"], opened["arms"]["candidate"]
    modes = [report.arms[name].get("numerics.mode") for name in names]
    moved = {arm: said for body in ends for arm, said in body.get("rounding", {}).items()}
    counts = {"identical": 0, "near_ties": 0, "wrong": 0}
    for one in found:
        base, other = (one[name] for name in names)
        if base["outputs_sha256"] == other["outputs_sha256"]:
            counts["identical"] += 1
        else:
            counts["near_ties" if outputs.harmless(base, other, moved, modes) else "wrong"] += 1
    return counts


def _differ(found: Sequence[Observation], names: Mapping[str, str]) -> bool:
    """Whether the engine says that it ran the candidate otherwise than the baseline, in every block."""
    candidate, baseline = names["candidate"], names["baseline"]
    return all(one[candidate]["effective_sha256"] != one[baseline]["effective_sha256"] for one in found)


def same_regime(found: Sequence[Observation], names: Mapping[str, str], opened: Mapping[str, Any]) -> bool:
    """Whether each of the two arms was bound by the same here, in more than half of the blocks, as at the author's.

    What is not known on either side never helps.
    """
    theirs = opened.get("regime")
    if not isinstance(theirs, Mapping) or not found:
        return False
    for arm in ("baseline", "candidate"):
        same = sum(one[names[arm]].get("bound_by") == theirs.get(arm) for one in found if theirs.get(arm))
        if 2 * same <= len(found):
            return False
    return True


def _opened_faults(report: Verification, opened: Mapping[str, Any]) -> list[str]:
    found = []
    if opened.get("evidence_valid") is not True:
        found.append("the author's own evidence was not shown to be valid")
    salt = opened.get("salt")
    results = {**opened, "injected_delay_us": salt.get("delay_us") if isinstance(salt, Mapping) else None}
    if results["injected_delay_us"] is not None:
        try:
            one_factor.check(report.arms, results)
        except (PacketError, KeyError) as error:
            found.append(f"the arms are not what was sealed: {error}")
    return found


def _order_faults(state: State, report: Verification) -> list[str]:
    """The runs of every attempt stand in the order that root and nonce give."""
    if state.accept is None:
        return []
    nonce = bytes.fromhex(state.accept.body["nonce"])
    wrong = []
    for start, end in zip(state.starts, state.ends, strict=False):
        number, blocks = start.body["attempt"], start.body["blocks"]
        if start.body["root"] != report.root:
            continue  # made on a version that a question has superseded; listed, and without blocks here
        wanted = schedule.runs(report.root, machine.attempt_nonce(nonce, number), blocks, report.arms)
        ran = [(one["block"], one["arm"]) for one in end.body["runs"]]
        whole = end.body["status"] == attempts.CRASHED or len(ran) == len(wanted)
        if ran != wanted[: len(ran)] or not whole:
            wrong.append(f"attempt {number} did not run the schedule that packet and nonce set")
    return wrong


def _extended(state: State) -> bool:
    """Whether the one extension was run and the cause of a stall recorded."""
    whole = [event for event in state.ends if event.body["status"] == attempts.COMPLETED]
    return len(whole) >= 2 and bool(state.freeze and state.freeze.body.get("cause"))
