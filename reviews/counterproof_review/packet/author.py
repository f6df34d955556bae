"""The author's part of a packet: results per arm and block, the rows they follow from, and which arm is which.

In this version it is open (`results/`). Its place is apart from everything public, so that sealing it later
changes no other file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from counterproof.measure.interval import log_ratios
from counterproof.measure.load import RunData, StudyData
from counterproof.measure.metrics import run_value
from counterproof.measure.slowed import step_times
from counterproof.record import canonical
from counterproof.record.schema import REQUESTS
from counterproof_review.packet import layout, tables
from counterproof_review.packet.documents import SCHEMAS
from counterproof_review.packet.surroundings import KERNEL_PATH

_TIMES = tuple(name for name in REQUESTS.names if name.endswith("_ns"))
_FACTOR = ("path", "baseline", "candidate", "lossless")


def per_block(study: StudyData) -> dict[str, list[float | None]]:
    """`{arm: [primary statistic of each block's run]}`; None where it could not be measured."""
    metric, statistic = study.plan["primary"]["metric"], study.plan["primary"]["statistic"]
    return {arm: [run_value(r, metric, statistic).value for r in study.of(arm)] for arm in study.arms}


def ratios(summaries: Mapping[str, list[float | None]]) -> dict[str, list[float | None]]:
    """`{arm: per-block ln(arm / baseline)}` for every arm but the baseline."""
    return {
        arm: log_ratios(values, summaries["baseline"])
        for arm, values in summaries.items()
        if arm != "baseline"
    }


def document(study: StudyData, opaque: Mapping[str, str], rows: int) -> dict[str, Any]:
    """results/results.json."""
    summaries = per_block(study)
    return {
        "schema": SCHEMAS[layout.RESULTS],
        "arms": dict(opaque),
        "factor": _factor(study.plan),
        "primary": {key: study.plan["primary"][key] for key in ("metric", "statistic", "better")},
        "per_block": {opaque[arm]: values for arm, values in summaries.items()},
        "log_ratios": ratios(summaries),
        "evidence_valid": _valid(study),
        "injected_delay_us": study.plan["slowed_delay_us"],
        "runs": [_run(study.runs[(b, arm)], opaque) for arm in study.arms for b in study.complete_blocks],
        "rows": rows,
    }


def write_rows(study: StudyData, opaque: Mapping[str, str], target: Path) -> int:
    """Write results/requests.parquet, run by run in the order of opaque names; return the number of rows."""
    parts = [
        _rows(study.runs[(block, arm)], opaque[arm], block)
        for arm in sorted(study.arms, key=lambda name: opaque[name])
        for block in study.complete_blocks
    ]
    table = pa.concat_tables(parts)
    tables.write(table, target)
    return int(table.num_rows)


def regime(study: StudyData) -> dict[str, str]:
    """What bound each arm on the author's machine, `{arm: kind}`; empty where its roofs were not known."""
    path = study.verified.paths.comparison
    found = canonical.read_json(path).get("bottleneck") if path.is_file() else None
    return {arm: str(placed["bound_by"]) for arm, placed in ((found or {}).get("arms") or {}).items()}


def salt_share(study: StudyData) -> float | None:
    """The known delay over the median step of the baseline; None where no delay or no step was recorded."""
    delay_ms = (study.plan["slowed_delay_us"] or 0) / 1000
    steps = [step_times(run) for run in study.of("baseline")]
    times = np.concatenate(steps) if steps else np.empty(0)
    return float(delay_ms / np.median(times)) if delay_ms and times.size and np.median(times) > 0 else None


def kernel_paths(study: StudyData) -> list[str]:
    """The kernel paths that the timed runs say they took; empty for targets that have none to tell."""
    return sorted(
        {path for run in study.runs.values() if isinstance(path := run.effective.get(KERNEL_PATH), str)}
    )


def _factor(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was varied: the path, or the leaves of a bundle, and the leaves whose value follows from them."""
    factor = plan.get("factor")
    if not factor:
        return None
    known = {key: factor[key] for key in _FACTOR if key in factor}
    follows = sorted(difference["path"] for difference in plan.get("fan_out") or ())
    return {**known, "bundle": list(factor.get("bundle") or ()), "follows": follows}


def _valid(study: StudyData) -> bool | None:
    """Whether the study's own comparison found its evidence valid; None before it was compared."""
    path = study.verified.paths.comparison
    return bool(canonical.read_json(path)["valid"]) if path.is_file() else None


def _run(run: RunData, opaque: Mapping[str, str]) -> dict[str, Any]:
    return {
        "arm": opaque[run.arm],
        "block": run.block,
        "manifest_sha256": run.sealed.manifest_sha256,
        "outputs_sha256": [_text(value) for value in run.requests["output_sha256"]],
    }


def _rows(run: RunData, name: str, block: int) -> pa.Table:
    """A run's requests with times from its first scheduled moment: no clock, no order between runs."""
    frame = run.requests.copy()
    start = frame["scheduled_ns"].min()
    for column in _TIMES:
        frame[column] = frame[column] - start
    # An error's text may hold a path; that there was one stands in `status`.
    frame["error"] = None
    frame.insert(0, "block", block)
    frame.insert(0, "arm", name)
    return pa.Table.from_pandas(frame, schema=tables.RESULT_ROWS, preserve_index=False)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and not pd.isna(value) else None
