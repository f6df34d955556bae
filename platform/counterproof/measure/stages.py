"""Where the time went: the stage waterfall between baseline and candidate, with its residual.

Per run and request the wall time of each (stage, phase) is summed and averaged over the successful requests; the
differences between the arms have t intervals across blocks. The bars and the residual add up to the change of the
mean end-to-end latency. If the residual exceeds the noise of that mean (A/A) and 2 % of the change, the
attribution is unresolved: the trace does not explain the change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from counterproof.measure.interval import differences, t_interval
from counterproof.measure.load import RunData, StudyData
from counterproof.measure.metrics import run_value

RESIDUAL_SHARE = 0.02
ORDER = (
    "queue",
    "tokenize",
    "lookup",
    "allocate",
    "transfer",
    "swap",
    "prefill",
    "decode",
    "draft",
    "verify",
)


def waterfall(study: StudyData) -> dict[str, Any]:
    """The `stages` part of the comparison. Times in ms per request (mean of the run, mean over blocks)."""
    empty: dict[str, Any] = {"waterfall": [], "total_ms": None, "residual_ms": None, "resolved": False}
    if "candidate" not in study.arms:
        return {**empty, "reason": "a calibration study has no candidate"}
    base, other = study.of("baseline"), study.of("candidate")
    if not base:
        return {**empty, "reason": "no complete block"}
    totals = [[run_value(run, "e2e_ms", "mean") for run in runs] for runs in (base, other)]
    missing = [m.reason for arm in totals for m in arm if m.value is None]
    if missing:
        return {**empty, "reason": f"no mean end-to-end latency: {missing[0]}"}
    tables = [[stage_means(run) for run in runs] for runs in (base, other)]
    if any(table.empty for arm in tables for table in arm):
        return {**empty, "reason": "a run has no stage trace"}
    bars = _bars(tables)
    total = _entry([m.value for m in totals[0]], [m.value for m in totals[1]])
    accounted = [[float(t.sum()) for t in arm] for arm in tables]
    rest = [
        [float(m.value or 0.0) - seen for m, seen in zip(arm, sums, strict=True)]
        for arm, sums in zip(totals, accounted, strict=True)
    ]
    residual = _entry(list(rest[0]), list(rest[1]))
    noise = _noise_ms(study)
    resolved, reason = _resolve(total, residual, noise)
    return {
        "waterfall": bars,
        "total_ms": total["delta_ms"],
        "total": total,
        "residual_ms": residual["delta_ms"],
        "residual": residual,
        "noise_ms": noise,
        "resolved": resolved,
        "reason": reason,
    }


def stage_means(run: RunData) -> pd.Series[float]:
    """Mean wall time in ms per successful request, indexed by (stage, phase)."""
    return mean_times(run.requests, run.stages)


def mean_times(requests: pd.DataFrame, stages: pd.DataFrame) -> pd.Series[float]:
    """`stage_means` of a run's two tables."""
    ok = requests.loc[requests["status"] == "ok", "request_index"]
    kept = stages[stages["request_index"].isin(ok)]
    sums = kept.groupby(["stage", "phase"])["wall_ns"].sum() / 1e6
    return sums / max(len(ok), 1)


def stage_request_times(run: RunData, stage: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Per successful request the wall time in ms of one stage (0 where it has none)."""
    ok = run.requests.loc[run.requests["status"] == "ok", "request_index"]
    kept = run.stages[(run.stages["stage"] == stage) & run.stages["request_index"].isin(ok)]
    sums = kept.groupby("request_index")["wall_ns"].sum().reindex(ok, fill_value=0) / 1e6
    return np.asarray(sums, dtype=np.float64)


def _bars(tables: list[list[pd.Series[float]]]) -> list[dict[str, Any]]:
    names = sorted({key for arm in tables for table in arm for key in table.index}, key=_place)
    bars = []
    for name in names:
        base, other = ([float(table.get(name, 0.0)) for table in arm] for arm in tables)
        bars.append({"stage": name[0], "phase": name[1], **_entry(list(base), list(other))})
    return bars


def _place(name: tuple[str, str]) -> tuple[int, int, str]:
    stages = ("input", "state", "compute", "output")
    stage, phase = name
    first = stages.index(stage) if stage in stages else len(stages)
    return first, ORDER.index(phase) if phase in ORDER else len(ORDER), phase


def _entry(baseline: list[float | None], candidate: list[float | None]) -> dict[str, Any]:
    delta = differences(candidate, baseline)
    interval = t_interval(delta)
    return {
        "baseline_ms": _mean(baseline),
        "candidate_ms": _mean(candidate),
        "delta_ms": _mean(delta),
        "ci_low": None if interval is None else interval.low,
        "ci_high": None if interval is None else interval.high,
    }


def _mean(values: list[float | None]) -> float | None:
    present = [v for v in values if v is not None]
    return sum(present) / len(present) if present and len(present) == len(values) else None


def _noise_ms(study: StudyData) -> float | None:
    """|mean| + t s / sqrt(k) of the A/A difference of the mean end-to-end latency."""
    values = [
        [run_value(run, "e2e_ms", "mean").value for run in study.of(arm)] for arm in ("again", "baseline")
    ]
    interval = t_interval(differences(*values))
    return None if interval is None else abs(interval.mean) + interval.high - interval.mean


def _resolve(total: dict[str, Any], residual: dict[str, Any], noise: float | None) -> tuple[bool, str]:
    if total["ci_low"] is None or noise is None:
        return False, "too few blocks for intervals"
    if total["ci_low"] <= 0 <= total["ci_high"]:
        return False, "the mean end-to-end latency did not change beyond its interval: nothing to attribute"
    limit = max(RESIDUAL_SHARE * abs(total["delta_ms"]), noise)
    if abs(residual["delta_ms"]) > limit:
        return False, (
            f"unresolved: {residual['delta_ms']:+.2f} ms of the change lies outside the traced stages, "
            f"more than the {limit:.2f} ms that noise explains"
        )
    return (
        True,
        f"the traced stages explain the change; residual {residual['delta_ms']:+.2f} ms within {limit:.2f}",
    )
