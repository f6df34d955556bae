"""What is recorded of a device: limits as identity, clocks and throttling as observation, memory by four measures.

A stand-in for the driver's tool answers what a test lets it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from counterproof.record import environment, hardware, machine
from counterproof.record.schema import RESOURCES
from counterproof.run import sampler, worker_main

ANSWERS = {
    "uuid": "GPU-1",
    "name": "Imagined 1",
    "driver_version": "1.2",
    "power.limit": "700.00",
    "mig.mode.current": "Disabled",
    "ecc.mode.current": "Enabled",
    "clocks.sm": "1965",
    "clocks.mem": "2619",
    "temperature.gpu": "80",
    "power.draw": "699.1",
    "clocks_throttle_reasons.active": "0x0000000000000004",
    "memory.used": "81000",
}


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`tool(devices=2, **answers)` puts a stand-in for nvidia-smi first on the path."""

    def make(devices: int = 1, **answers: str) -> None:
        known = ANSWERS | {name.replace("__", "."): value for name, value in answers.items()}
        path = tmp_path / "bin" / "nvidia-smi"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f"#!{sys.executable}\nimport sys\nknown = {known!r}\n"
            "asked = next(a for a in sys.argv if a.startswith('--query-gpu='))[12:].split(',')\n"
            f"for _ in range({devices}): print(', '.join(known[name] for name in asked))\n",
            encoding="utf-8",
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")

    return make


def test_another_power_limit_is_another_environment_and_hardware_class(tool: Callable[..., None]) -> None:
    """A device that somebody capped is another machine: read back from the driver, not from what was asked for."""
    tool()
    before = machine.gpu_identity()
    assert before["gpu.0.power.limit"] == "700.00"
    tool(power__limit="500.00")
    after = machine.gpu_identity()
    assert environment.env_id(before, []) != environment.env_id(after, [])
    assert hardware.class_of(before) != hardware.class_of(after)


def test_clocks_and_throttle_reasons_are_observed_and_no_identity(tool: Callable[..., None]) -> None:
    tool(devices=2)
    seen = machine.gpu_observation()
    for device in (0, 1):
        assert seen[f"gpu.{device}.clocks.sm"] == "1965"
        assert seen[f"gpu.{device}.clocks_throttle_reasons.active"] == "0x0000000000000004"
    assert not set(seen) & set(machine.gpu_identity())


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_run_on_a_device_carries_both(tool: Callable[..., None], device: str) -> None:
    tool()

    class Target:
        def effective_config(self) -> dict[str, Any]:
            return {"device": device}

        def identity(self) -> dict[str, Any]:
            return {"kernel_path": "x"}

    facts = worker_main._facts(Target(), {})  # type: ignore[arg-type]
    assert ("gpu.0.power.limit" in facts["identity"]) == (device == "cuda")
    assert ("gpu.0.clocks_throttle_reasons.active" in facts["observed"]) == (device == "cuda")


def test_memory_in_use_on_all_devices_is_sampled_from_outside(tool: Callable[..., None]) -> None:
    tool(devices=2)
    row = sampler._sample(psutil.Process(), True)
    assert row is not None
    assert row["gpu_used_bytes"] == 2 * 81_000 << 20
    assert 0 < row["rss_bytes"] != row["gpu_used_bytes"]
    assert {"rss_bytes", "gpu_allocated_bytes", "gpu_reserved_bytes", "gpu_used_bytes"} <= set(
        RESOURCES.names
    )


@pytest.mark.parametrize("answer", ["[N/A]", "", "Insufficient Permissions"])
def test_memory_that_the_driver_does_not_tell_is_not_measured(tool: Callable[..., None], answer: str) -> None:
    tool(memory__used=answer)
    assert machine.gpu_used_bytes() is None


def test_without_a_device_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert (machine.gpu_identity(), machine.gpu_observation(), machine.gpu_used_bytes()) == ({}, {}, None)
