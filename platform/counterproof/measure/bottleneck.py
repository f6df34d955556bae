"""Was the stated bottleneck the real one? Baseline and candidate placed against this machine's roofs.

For the phase that the primary metric sees (decode for times between tokens, prefill for the time to the first, else
the longer one): operations and bytes a second, as counted by the engine, over what the machine was measured to be
able to do. Bytes are the weights once a step, shared out by the phase's part of the step, and the KV moved.

An arm is bound by, first match: memory_capacity (requests were preempted, or waited while 95 % of the blocks were in
use), scheduling (more than half of the working time lies outside compute), the nearer roof if at least a tenth of it
is used (arithmetic or memory_traffic), else scheduling: the time goes to calls and waits, not to work.
Source of the model: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from counterproof.measure.load import RunData, StudyData

KINDS = ("memory_capacity", "memory_traffic", "arithmetic", "interconnect", "scheduling")
NEAR = 0.1
FULL = 0.95
_BETWEEN = ("tpot_ms", "itl_ms")
NAMES = {
    "memory_capacity": "memory capacity",
    "memory_traffic": "memory traffic",
    "arithmetic": "arithmetic",
    "interconnect": "interconnect",
    "scheduling": "scheduling and calls",
}


@dataclass(frozen=True)
class Placement:
    """One arm against the roofs. Rates per second of the phase's compute time; utilisations are fractions of the
    roofs; `intensity` is operations a byte."""

    phase: str
    bound_by: str
    flops_s: float
    bytes_s: float
    intensity: float
    arithmetic_used: float
    memory_used: float
    outside_compute: float


def judge_bottleneck(study: StudyData) -> dict[str, Any]:
    """The bottleneck part of comparison.json. Without roofs or work it says why nothing can be said."""
    factor = study.plan.get("factor") or {}
    stated = factor.get("attacks") or None
    result: dict[str, Any] = {"stated": stated, "real": None, "confirmed": None, "arms": {}}
    rates = (study.plan.get("roofline") or {}).get("rates")
    if not rates:
        return {**result, "reason": "this machine's roofs were not measured: counterproof doctor --roofline"}
    if not study.complete_blocks:
        return {**result, "reason": "no complete block"}
    phase = _phase(study)
    for arm in (a for a in ("baseline", "candidate") if a in study.arms):
        placed = place(study.of(arm), phase, rates)
        if placed is None:
            return {**result, "reason": f"{arm}: the engine counted no work in {phase}"}
        result["arms"][arm] = asdict(placed)
    real = result["arms"]["baseline"]["bound_by"]
    confirmed = None if stated is None else stated == real
    return {
        **result,
        "phase": phase,
        "real": real,
        "confirmed": confirmed,
        "reason": "",
        "rates": dict(rates),
    }


def place(runs: Sequence[RunData], phase: str, rates: Mapping[str, Any]) -> Placement | None:
    """Place the runs of one arm, taken together. None if they counted no work in `phase`."""
    seconds = flops = size = compute = whole = 0.0
    for run in runs:
        found = _work(run, phase)
        seconds, flops, size = seconds + found[0], flops + found[1], size + found[2]
        compute, whole = compute + found[3], whole + found[4]
    roof = _arithmetic_roof(runs[0], rates)
    if seconds <= 0 or flops <= 0 or size <= 0 or not roof or whole <= 0:
        return None
    arithmetic, memory = flops / seconds / roof, size / seconds / float(rates["memory_bytes_s"])
    outside = max(0.0, 1.0 - compute / whole)
    bound = _bound(runs, outside, arithmetic, memory)
    return Placement(phase, bound, flops / seconds, size / seconds, flops / size, arithmetic, memory, outside)


def of_comparison(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """The bottleneck part of a comparison, also of one that was written before there was any."""
    reason = "the version that compared this study did not place it"
    missing: dict[str, Any] = {"stated": None, "real": None, "confirmed": None, "arms": {}, "reason": reason}
    return dict(comparison.get("bottleneck") or missing)


def sentence(found: Mapping[str, Any]) -> str:
    """What the report says."""
    if found["real"] is None:
        return f"Not placed against the roofs: {found['reason']}."
    parts = [_arm_words(arm, placed) for arm, placed in found["arms"].items()]
    stated = found["stated"]
    if stated is None:
        return " ".join(parts)
    verdict = (
        "was the real one" if found["confirmed"] else f"was NOT the real one ({NAMES[found['real']]} was)"
    )
    return f"The stated bottleneck, {NAMES[stated]}, {verdict}. " + " ".join(parts)


def _arm_words(arm: str, placed: Mapping[str, Any]) -> str:
    above = max(placed["arithmetic_used"], placed["memory_used"]) > 1
    note = (
        " (above what was measured to be possible: measure the roofs again, at a quiet time)" if above else ""
    )
    return (
        f"{arm.capitalize()}, {placed['phase']}: bound by {NAMES[placed['bound_by']]}; "
        f"{placed['flops_s'] / 1e9:.1f} GFLOP/s ({100 * placed['arithmetic_used']:.0f} % of the roof) and "
        f"{placed['bytes_s'] / 1e9:.1f} GB/s ({100 * placed['memory_used']:.0f} %), "
        f"{placed['intensity']:.1f} operations a byte{note}."
    )


def phase_of(metric: str) -> str | None:
    """The phase that a metric of single requests sees; None for one that sees both."""
    if metric in _BETWEEN:
        return "decode"
    return "prefill" if metric == "ttft_ms" else None


def _phase(study: StudyData) -> str:
    if own := phase_of(str(study.plan["primary"]["metric"])):
        return own
    stages = pd.concat([run.stages for run in study.of("baseline")])
    spent = stages[stages["stage"] == "compute"].groupby("phase")["share_ns"].sum()
    return str(spent.idxmax()) if len(spent) else "decode"


def _work(run: RunData, phase: str) -> tuple[float, float, float, float, float]:
    """(seconds of the phase's compute, its operations, its bytes, seconds of all compute, of all but queueing)."""
    stages = run.stages
    compute = stages[stages["stage"] == "compute"]
    own = compute[compute["phase"] == phase]
    spent, part = float(compute["share_ns"].sum()), own.groupby("step")["share_ns"].sum()
    steps = compute.groupby("step")["share_ns"].sum()
    shares = (part / steps.reindex(part.index)).fillna(0.0).sum()
    weights = float(run.effective.get("model.weight_bytes") or 0) * float(shares)
    size = weights + float(own["bytes"].sum())
    working = stages[
        stages["phase"] != "queue"
    ]  # a request that waits for others' work is no sign of idleness
    return (
        float(own["share_ns"].sum()) / 1e9,
        float(own["flops"].sum()),
        size,
        spent / 1e9,
        float(working["share_ns"].sum()) / 1e9,
    )


def _arithmetic_roof(run: RunData, rates: Mapping[str, Any]) -> float | None:
    by_dtype = rates.get("flops_s") or {}
    found = by_dtype.get(str(run.effective.get("dtype")))
    return None if found is None else float(found)


def _bound(runs: Sequence[RunData], outside: float, arithmetic: float, memory: float) -> str:
    if any(run.counters.get("preemptions", 0) or _starved(run) for run in runs):
        return "memory_capacity"
    if outside > 0.5 or max(arithmetic, memory) < NEAR:
        return "scheduling"
    return "arithmetic" if arithmetic >= memory else "memory_traffic"


def _starved(run: RunData) -> bool:
    """Whether requests waited while the pool was all but full."""
    rows = run.resources[run.resources["source"] == "engine"]
    total = float(run.effective.get("kv_cache.blocks") or 0)
    if not total or not {"waiting", "kv_blocks_used"} <= set(rows.columns):
        return False
    return bool(((rows["waiting"].fillna(0) > 0) & (rows["kv_blocks_used"].fillna(0) >= FULL * total)).any())
