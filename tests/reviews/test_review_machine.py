"""The measuring machine of the reviews' tests: what it finds depends on no nonce and on no opaque name, which are random."""

from __future__ import annotations

import random
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from counterproof.measure.noise import a_a_gate

NAMES = [f"{n:08x}" for n in random.Random(4).sample(range(1 << 32), 80)]
BLOCKS = 8


def packet(names: list[str]) -> Any:
    """Baseline, the baseline again, the delayed one and a candidate under these names."""
    plain: dict[str, Any] = {"kv_cache.enabled": False, "inject.step_delay_us": 0}
    arms = [plain, dict(plain), {**plain, "inject.step_delay_us": 900}, {**plain, "kv_cache.enabled": True}]
    return SimpleNamespace(arms=dict(zip(names, arms, strict=True)))


def noise(machine: Any, names: list[str]) -> np.ndarray[Any, Any]:
    """Rows: blocks; columns: the arms in the order of `packet`."""
    report = packet(names)
    return np.array([[machine._noise(report, block, arm) for arm in names] for block in range(BLOCKS)])


@pytest.mark.parametrize("calls", range(1, 9))
def test_names_at_most_swap_two_equal_arms_and_no_gate_fails_by_chance(
    parties_module: ModuleType, calls: int
) -> None:
    machine = parties_module.Machine(calls=calls)
    seen = set()
    for start in range(0, len(NAMES), 4):
        found = noise(machine, NAMES[start : start + 4])
        seen.add(found.tobytes())
        for blocks in (6, BLOCKS):
            gate = a_a_gate((found[:blocks, 1] - found[:blocks, 0]).tolist(), 0.05)
            assert gate.passed is True, gate.detail
        assert len(np.unique(found)) == found.size  # four arms, each with noise of its own
        assert 0.3 * machine.noise < found.std() < 3 * machine.noise
    assert len(seen) == 2
