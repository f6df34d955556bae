"""Resident, allocated, reserved and in use: four peaks of a run on a device, and three of them nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from counterproof.decide.words import metric_words
from counterproof.measure.compare import compare
from counterproof.measure.device_memory import METRICS
from counterproof.measure.load import load_study
from counterproof.measure.metrics import run_value

RESOURCES = pd.DataFrame(
    [
        {"source": "sampler", "rss_bytes": 10, "gpu_used_bytes": 4_000},
        {"source": "sampler", "rss_bytes": 12, "gpu_used_bytes": None},
        {"source": "sampler", "rss_bytes": 11, "gpu_used_bytes": 4_100},
        {"source": "engine", "gpu_allocated_bytes": 2_500, "gpu_reserved_bytes": 3_000},
        {"source": "engine", "gpu_allocated_bytes": 2_700, "gpu_reserved_bytes": 3_000},
        {"source": "engine", "gpu_allocated_bytes": 2_600, "gpu_reserved_bytes": 2_900},
    ]
)


def peak(metric: str, resources: pd.DataFrame = RESOURCES) -> Any:
    run: Any = SimpleNamespace(resources=resources, remote=False)
    return run_value(run, metric, "peak")


def test_no_measure_stands_for_another() -> None:
    peaks = {metric: peak(metric).value for metric in ("peak_rss_bytes", *METRICS)}
    assert peaks == {
        "peak_rss_bytes": 12.0,
        "peak_gpu_allocated_bytes": 2_700.0,
        "peak_gpu_reserved_bytes": 3_000.0,
        "peak_gpu_used_bytes": 4_100.0,
    }


@pytest.mark.parametrize("metric", METRICS)
def test_what_was_not_recorded_has_a_reason_and_no_number(metric: str) -> None:
    column = metric.removeprefix("peak_")
    found = peak(metric, RESOURCES.assign(**{column: None}))
    assert found.value is None
    assert f"recorded no {column}" in found.reason
    assert metric_words(metric, "peak").startswith("peak device memory")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_study_on_a_device_compares_all_of_them(build_study: Callable[..., Path], device: str) -> None:
    study = load_study(build_study(blocks=1, requests=3, new_tokens=4, prompt_tokens=8))
    for run in study.runs.values():
        run.effective["device"] = device
    found = {entry["metric"]: entry["verdict"] for entry in compare(study)["metrics"].values()}
    assert "peak_rss_bytes" in found
    assert {name: found.get(name) for name in METRICS} == dict.fromkeys(
        METRICS, "not measured" if device == "cuda" else None
    )
