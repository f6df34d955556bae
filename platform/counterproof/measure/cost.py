"""Where the cost went: a stage x resource matrix in which no cell is blank.

Rows: the whole request and its four stages. Columns: time p50, time p99, memory at its peak and memory kept
while no request is there, bytes moved, quality, start-up.
A cell holds baseline, candidate and their ratio with an interval across blocks, or says "not measured" and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from counterproof.measure.divergence import Divergence
from counterproof.measure.effects import effect
from counterproof.measure.load import RunData, StudyData
from counterproof.measure.metrics import run_samples, run_value, summarise
from counterproof.measure.percentile import Measured
from counterproof.measure.setup import has_setup
from counterproof.measure.stages import stage_request_times

STAGES = ("whole", "input", "state", "compute", "output")
RESOURCES = ("time_p50", "time_p99", "memory", "memory_kept", "bytes_moved", "quality", "startup")
UNITS = {
    "time_p50": "ms",
    "time_p99": "ms",
    "memory": "bytes",
    "memory_kept": "bytes",
    "bytes_moved": "bytes",
    "quality": "share of outputs without a wrong token",
    "startup": "ms",
}
_Value = Callable[[RunData], Measured]


def cost_matrix(study: StudyData, divergence: Divergence | None) -> list[dict[str, Any]]:
    """All cells, row by row."""
    return [_cell(study, stage, resource, divergence) for stage in STAGES for resource in RESOURCES]


def _cell(study: StudyData, stage: str, resource: str, divergence: Divergence | None) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "stage": stage,
        "resource": resource,
        "unit": UNITS[resource],
        **dict.fromkeys(("baseline", "candidate", "ratio", "ci_low", "ci_high")),
        "difference": {"mean": None, "ci_low": None, "ci_high": None},
        "status": "not measured",
    }
    if "candidate" not in study.arms or not study.complete_blocks:
        reason = "no complete block" if "candidate" in study.arms else "a calibration study has no candidate"
        return {**cell, "reason": reason}
    if resource == "quality":
        return {**cell, **_quality(stage, divergence)}
    value, reason = _source(stage, resource)
    if (stage, resource) == ("state", "startup") and has_setup(study):
        # Documents uploaded before the load: state that was made ready beside the engine's own start.
        value = _metric("setup_ms", "total")
    if value is None:
        return {**cell, "reason": reason}
    return {**cell, **_measured(study, value)}


def _measured(study: StudyData, value: _Value) -> dict[str, Any]:
    base, other = ([value(run) for run in study.of(arm)] for arm in ("baseline", "candidate"))
    missing = next((m.reason for m in (*base, *other) if m.value is None), "")
    if missing:
        return {"reason": missing}
    found = effect([m.value for m in base], [m.value for m in other])
    return {
        "baseline": sum(m.value or 0.0 for m in base) / len(base),
        "candidate": sum(m.value or 0.0 for m in other) / len(other),
        "ratio": found["ratio"],
        "ci_low": found["ci_low"],
        "ci_high": found["ci_high"],
        "difference": found["difference"],
        "status": "measured",
        "reason": found["reason"],
    }


def _quality(stage: str, divergence: Divergence | None) -> dict[str, Any]:
    if stage != "output":
        return {"reason": "quality shows in the output"}
    if divergence is None or divergence.compared == 0:
        return {"reason": "no outputs of both arms to compare"}
    share = 1 - divergence.wrong / divergence.compared
    return {
        "baseline": 1.0,
        "candidate": share,
        "ratio": share,
        "status": "measured",
        "reason": f"an exact count; {divergence.harmless} of {divergence.compared} parted at a near tie",
    }


def _source(stage: str, resource: str) -> tuple[_Value | None, str]:
    """The function that measures the cell in one run, or why nothing does."""
    if resource in ("time_p50", "time_p99"):
        return _time(stage, resource.removeprefix("time_")), ""
    if resource == "bytes_moved":
        return (
            (_kv_traffic, "")
            if stage == "state"
            else (None, "only KV traffic is counted, not weights or activations")
        )
    table: dict[tuple[str, str], tuple[str, str]] = {
        ("whole", "memory"): ("peak_rss_bytes", "peak"),
        ("state", "memory"): ("kv_bytes_peak", "peak"),
        ("state", "memory_kept"): ("kv_bytes_kept", "peak"),
        ("compute", "memory"): ("weight_bytes", "total"),
        ("whole", "startup"): ("startup_ms", "total"),
    }
    if (stage, resource) in table:
        return _metric(*table[(stage, resource)]), ""
    if resource == "memory":
        return None, "memory is told apart only as resident set, KV and weights"
    if resource == "memory_kept":
        return None, "only KV is kept from one request to the next"
    return None, "start-up is timed as a whole"


def _metric(metric: str, statistic: str) -> _Value:
    return lambda run: run_value(run, metric, statistic)


def _time(stage: str, statistic: str) -> _Value:
    if stage == "whole":
        return lambda run: summarise(run_samples(run, "e2e_ms"), statistic)
    return lambda run: summarise(stage_request_times(run, stage), statistic)


def _kv_traffic(run: RunData) -> Measured:
    """Bytes of KV written and read, by the engine's counters."""
    parts = [run.counters.get(name) for name in ("kv_bytes_written", "kv_bytes_read")]
    if any(part is None for part in parts):
        return Measured(None, 0, "the engine does not count KV bytes written and read")
    return Measured(float(sum(part or 0 for part in parts)), 1)
