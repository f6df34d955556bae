"""Failures of other harnesses that no other test keeps away; tests/house/field_cases.yaml lists all of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from counterproof.measure.latency import request_latencies, samples
from counterproof.measure.metrics import summarise
from counterproof.record import machine
from counterproof.record.schema import RESOURCES


def frame(**columns: list[object]) -> pd.DataFrame:
    """Two requests of 24 tokens asked for; the second stopped after 3."""
    base: dict[str, list[object]] = {
        "request_index": [0, 1],
        "max_new_tokens": [24, 24],
        "output_tokens": [24, 3],
        "scheduled_ns": [0, 0],
        "sent_ns": [0, 0],
        "first_token_ns": [10_000_000, 10_000_000],
        "last_token_ns": [240_000_000, 30_000_000],
        "done_ns": [240_000_000, 30_000_000],
        "status": ["ok", "ok"],
    }
    return pd.DataFrame({**base, **columns})


def test_time_per_token_is_of_the_tokens_that_came() -> None:
    found = request_latencies(frame())
    assert found["tpot_ms"].tolist() == [10.0, 10.0]


def test_a_failed_request_leaves_no_mean() -> None:
    sample = samples(frame(status=["ok", "error"]), "e2e_ms")
    assert np.isinf(sample).sum() == 1
    mean = summarise(sample, "mean")
    assert mean.value is None
    assert "1 of 2 requests failed" in mean.reason


def test_every_kind_of_memory_has_a_column_of_its_own() -> None:
    kinds = {"rss_bytes", "gpu_allocated_bytes", "gpu_reserved_bytes", "gpu_used_bytes", "kv_bytes_used"}
    assert kinds <= set(RESOURCES.names)


def test_the_processors_clock_is_recorded() -> None:
    mhz = machine.cpu_mhz()
    if mhz is None:
        pytest.skip("this machine's kernel does not tell the clock")
    assert math.isfinite(mhz) and mhz > 100
    assert "cpu_mhz" in RESOURCES.names


def test_long_values_are_never_cut_by_the_tracker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from counterproof.record.mlflow_view import Tracker

    # A variable of the user's that would make the tracker cut, and one that would hijack every run.
    monkeypatch.setenv("MLFLOW_TRUNCATE_LONG_VALUES", "true")
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    client = Tracker(f"sqlite:///{tmp_path}/t.db", None).client()
    run = client.create_run(client.create_experiment("e")).info.run_id
    assert run != "0" * 32
    client.log_param(run, "config", "x" * 5999)
    assert client.get_run(run).data.params["config"] == "x" * 5999
    with pytest.raises(Exception, match=r"6000|length"):
        client.log_param(run, "longer", "x" * 6001)
