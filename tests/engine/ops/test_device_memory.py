"""Allocated and reserved memory of a device are two numbers, each the peak since it was last asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.intake.request import SamplingParams


@pytest.fixture
def engine(tiny_model: Path):
    fixed = [f"model={tiny_model}", "dtype=fp32", "threads.count=1", "numerics.mode=fast"]
    with Engine(parse_overrides(fixed)) as engine:
        yield engine


def test_a_cpu_has_none(engine):
    assert engine._loaded.device_memory() == {}
    assert not [name for name in engine.gauges() if name.startswith("gpu_")]


def test_every_step_gauges_the_peaks_since_the_last(engine, monkeypatch):
    worker, peaks, resets = engine._loaded.runner.worker, iter(range(1000, 9000, 10)), []
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(peaks))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 1 << 30)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    engine.drain_gauges()
    # Only what is asked of the device changes: the computation stays on the CPU.
    monkeypatch.setattr(worker, "_device", torch.device("cuda:0"))
    monkeypatch.setattr(worker, "_on_gpu", True)
    engine.generate([[5, 250, 17]], SamplingParams(max_tokens=4, ignore_eos=True))
    seen = [gauges for _, gauges in engine.drain_gauges()]
    assert len(seen) >= 4
    allocated = [gauges["gpu_allocated_bytes"] for gauges in seen]
    assert allocated == sorted(set(allocated)) and allocated[0] >= 1000
    assert {gauges["gpu_reserved_bytes"] for gauges in seen} == {1 << 30}
    assert len(resets) == len(seen)
