"""Values of single requests and samples of memory, read from the Parquet files of sealed timed runs.

Every sealed run of a study is read; none is left out and none is sampled. The definitions of latency are the
harness's own. A failed request has no latency and stands at +inf, so that a distribution shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from counterproof.measure import latency
from counterproof_dashboard.curves import TIMELINE_COLUMNS, timeline_points
from counterproof_dashboard.data import Run, Study

SAMPLE_COLUMNS = ("arm", "block", "value")
LATENCIES = ("e2e_ms", "ttft_ms", "tpot_ms", "itl_ms", "service_ms", "client_queue_ms")
_REQUEST_COLUMNS = (
    "request_index",
    "status",
    "output_tokens",
    "scheduled_ns",
    "sent_ns",
    "first_token_ns",
    "last_token_ns",
    "done_ns",
)


@dataclass(frozen=True)
class ArmCount:
    """What stands behind one arm's curve. `values` are finite; `unrecorded` names runs that have no such data."""

    arm: str
    runs: int
    blocks: int
    values: int
    failed: int
    missing: int
    unrecorded: tuple[str, ...] = ()


def latency_samples(study: Study, metric: str) -> tuple[pd.DataFrame, list[ArmCount]]:
    """All values of `metric` (one of LATENCIES) in ms, with what was counted per arm.

    Frame: SAMPLE_COLUMNS; value +inf = a failed request. A time that should be there and is not is counted as
    missing and is not in the frame; neither is a metric that does not exist for a request (TPOT of one token).
    """
    parts: list[pd.DataFrame] = []
    counts: list[ArmCount] = []
    for arm in dict.fromkeys(run.arm for run in study.sealed()):
        runs = study.sealed(arm)
        found = [(run, _run_values(run, metric)) for run in runs]
        known = [(run, values) for run, values in found if values is not None]
        together = np.concatenate([values for _, values in known]) if known else np.empty(0)
        counts.append(
            ArmCount(
                arm,
                runs=len(known),
                blocks=len({run.block for run, _ in known}),
                values=int(np.isfinite(together).sum()),
                failed=int(np.isposinf(together).sum()),
                missing=int(np.isnan(together).sum()),
                unrecorded=tuple(run.name for run, values in found if values is None),
            )
        )
        parts += [
            pd.DataFrame({"arm": arm, "block": run.block, "value": values[~np.isnan(values)]})
            for run, values in known
        ]
    filled = [part for part in parts if len(part)]
    samples = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(SAMPLE_COLUMNS))
    return samples[list(SAMPLE_COLUMNS)], counts


def _run_values(run: Run, metric: str) -> NDArray[np.float64] | None:
    requests = read_columns(run.folder / "requests.parquet", _REQUEST_COLUMNS)
    if requests is None:
        return None
    if metric != "itl_ms":
        return latency.samples(requests, metric)
    tokens = read_columns(run.folder / "tokens.parquet", ("request_index", "token_index", "time_ns"))
    if tokens is None:
        return None
    return latency.token_gaps(
        requests, tokens.sort_values(["request_index", "token_index"], ignore_index=True)
    )


def read_columns(path: Path, columns: Sequence[str]) -> pd.DataFrame | None:
    """The columns, or None where the file or one of the columns is not there: "not recorded", never 0."""
    try:
        table = pq.read_table(path, columns=list(columns))
    except (OSError, pa.ArrowException):
        return None
    if any(name not in table.column_names for name in columns):
        return None
    frame: pd.DataFrame = table.to_pandas()
    return frame


def memory_timelines(study: Study, column: str, source: str) -> tuple[pd.DataFrame, list[str]]:
    """`column` of resources.parquet in MiB over the seconds of each sealed timed run, from samples of `source`.

    Frame: TIMELINE_COLUMNS, at most 513 points a run (the highest of each time bin). Second: runs without it.
    """
    parts: list[pd.DataFrame] = []
    absent: list[str] = []
    for run in study.sealed():
        frame = read_columns(run.folder / "resources.parquet", ("time_ns", "source", column))
        rows = None if frame is None else frame[(frame["source"] == source) & frame[column].notna()]
        if frame is None or rows is None or not len(rows):
            absent.append(run.name)
            continue
        seconds = (rows["time_ns"] - frame["time_ns"].min()).to_numpy(float) / 1e9
        points = timeline_points(seconds, rows[column].to_numpy(float) / 2**20)
        parts.append(points.assign(arm=run.arm, run=run.name))
    result = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(TIMELINE_COLUMNS))
    return result[list(TIMELINE_COLUMNS)], absent


def run_line(run: Run, column: str, source: str, unit: float = 1.0) -> pd.DataFrame:
    """`column` of one run from samples of `source`, divided by `unit`, over the seconds since its first sample.

    Columns seconds and value, at most 513 points (the highest of each time bin); empty where it was not recorded.
    """
    frame = read_columns(run.folder / "resources.parquet", ("time_ns", "source", column))
    if frame is None:
        return pd.DataFrame(columns=["seconds", "value"])
    rows = frame[(frame["source"] == source) & frame[column].notna()]
    seconds = (rows["time_ns"] - frame["time_ns"].min()).to_numpy(float) / 1e9
    return timeline_points(seconds, rows[column].to_numpy(float) / unit)
