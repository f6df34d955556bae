"""Stage times of every sealed timed run, and the phases of one run over time, read from its Parquet files.

The definition of a stage's time is the harness's own. Every sealed run is read; none is sampled.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from counterproof.measure.stages import mean_times
from counterproof_dashboard.curves import MOST_POINTS
from counterproof_dashboard.data import Run, Study
from counterproof_dashboard.samples import read_columns
from counterproof_dashboard.stage_charts import BAND_COLUMNS, STAGE_COLUMNS

_TRACE = ("step", "request_index", "stage", "phase", "start_ns", "wall_ns")
NAMES = {frozenset({"prefill"}): "prefill", frozenset({"decode"}): "decode"}
MIXED = "prefill and decode in one step"


def stage_times(study: Study) -> tuple[pd.DataFrame, list[str]]:
    """Mean wall time in ms per successful request of every stage, arm and block. Second: runs without a trace.

    Frame: STAGE_COLUMNS. A run in which no request succeeded has no mean and counts as without one.
    """
    parts: list[pd.DataFrame] = []
    absent: list[str] = []
    for run in study.sealed():
        requests = read_columns(run.folder / "requests.parquet", ("request_index", "status"))
        stages = read_columns(run.folder / "stages.parquet", _TRACE)
        if requests is None or stages is None or stages.empty or not (requests["status"] == "ok").any():
            absent.append(run.name)
            continue
        means = mean_times(requests, stages).rename("ms").reset_index()
        means["name"] = [
            shown(stage, phase) for stage, phase in zip(means["stage"], means["phase"], strict=True)
        ]
        summed = means.groupby("name", sort=False)["ms"].sum().reset_index()
        parts.append(summed.assign(arm=run.arm, block=run.block))
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(STAGE_COLUMNS))
    return frame[list(STAGE_COLUMNS)], absent


def shown(stage: str, phase: str) -> str:
    """Compute by its phase, every other stage as a whole: what is too small to see is one bar."""
    return f"{stage}: {phase}" if stage == "compute" else str(stage)


def phase_bands(run: Run) -> pd.DataFrame:
    """When the run computed prefill, decode or both in one step: BAND_COLUMNS, in seconds since its first sample.

    Neighbouring steps of one kind are one band. More than MOST_POINTS bands are binned in time; a bin is of every
    kind that was seen in it. Empty where no trace or no sample was recorded.
    """
    resources = read_columns(run.folder / "resources.parquet", ("time_ns",))
    stages = read_columns(run.folder / "stages.parquet", _TRACE)
    empty = pd.DataFrame(columns=list(BAND_COLUMNS))
    if resources is None or stages is None or resources.empty:
        return empty
    compute = stages[(stages["stage"] == "compute") & stages["step"].notna()].copy()
    if compute.empty:
        return empty
    compute["end_ns"] = compute["start_ns"] + compute["wall_ns"]
    steps = compute.groupby("step").agg(
        start=("start_ns", "min"), end=("end_ns", "max"), phases=("phase", frozenset)
    )
    origin = float(resources["time_ns"].min())
    start = (steps["start"].to_numpy(float) - origin) / 1e9
    end = (steps["end"].to_numpy(float) - origin) / 1e9
    kinds = [
        NAMES.get(phases, MIXED if len(phases) > 1 else next(iter(phases))) for phases in steps["phases"]
    ]
    bands = list(_merged(start, end, kinds))
    if len(bands) > MOST_POINTS:
        bands = list(_binned(bands))
    return pd.DataFrame(bands, columns=list(BAND_COLUMNS))


def _merged(
    start: NDArray[np.float64], end: NDArray[np.float64], kinds: list[str]
) -> Iterator[tuple[float, float, str]]:
    order = np.argsort(start, kind="stable")
    current: tuple[float, float, str] | None = None
    for place in order:
        begin, stop, kind = float(start[place]), float(end[place]), kinds[place]
        if current is not None and current[2] == kind:
            current = (current[0], max(current[1], stop), kind)
            continue
        if current is not None:
            yield current
        current = (begin, stop, kind)
    if current is not None:
        yield current


def _binned(bands: list[tuple[float, float, str]]) -> Iterator[tuple[float, float, str]]:
    low, high = min(b[0] for b in bands), max(b[1] for b in bands)
    edges = np.linspace(low, high, MOST_POINTS + 1)
    seen: list[set[str]] = [set() for _ in range(MOST_POINTS)]
    for begin, stop, kind in bands:
        first = int(np.searchsorted(edges, begin, "right")) - 1
        last = int(np.searchsorted(edges, stop, "left"))
        for place in range(max(first, 0), min(max(last, first + 1), MOST_POINTS)):
            seen[place].add(kind)
    filled = [place for place in range(MOST_POINTS) if seen[place]]
    kinds = [next(iter(seen[place])) if len(seen[place]) == 1 else MIXED for place in filled]
    yield from _merged(edges[filled], edges[[place + 1 for place in filled]], kinds)
