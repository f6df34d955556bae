"""The box in which the study's result holds: exactly what was run, and nothing wider."""

from __future__ import annotations

from typing import Any

import pandas as pd

from counterproof.measure.load import StudyData

HARDWARE = ("cpu.model", "cpu_model", "gpu.name", "gpu_name", "threads.count", "threads", "affinity")


def scope_of(study: StudyData) -> dict[str, Any]:
    """Model, hardware class, dtype, prompt and output lengths, concurrency as they occurred in complete blocks."""
    runs = study.of("baseline")
    if not runs:
        return {"reason": "no complete block"}
    effective, ids = runs[0].effective, runs[0].environment.get("id", {})
    requests = pd.concat([run.requests for run in runs])
    workload = study.plan.get("workload", {})
    return {
        "model": effective.get("model"),
        "model_sha256": ids.get("model.weights_sha256", ids.get("model_sha256")),
        "dtype": effective.get("dtype"),
        "device": effective.get("device"),
        "numerics": effective.get("numerics.mode"),
        "hardware": {name: ids[name] for name in ids if name in HARDWARE or _names_gpu(name)},
        "prompt_tokens": _span(requests["prompt_tokens"]),
        "output_tokens": _span(requests["output_tokens"]),
        "concurrency": workload.get("concurrency"),
        "workload": workload.get("name"),
        "blocks": len(runs),
        "requests_per_run": workload.get("requests"),
    }


def _names_gpu(field: str) -> bool:
    return field.startswith("gpu.") and field.endswith("name")


def _span(column: pd.Series[Any]) -> list[int] | None:
    kept = column.dropna()
    return None if kept.empty else [int(kept.min()), int(kept.max())]
