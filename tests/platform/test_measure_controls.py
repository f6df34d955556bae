"""The arm with the known delay shows what the set-up can see. It never enters a number about anything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof.decide.rule import decide
from counterproof.measure.compare import compare
from counterproof.measure.load import load_study

FIELDS: dict[str, Any] = {"new_tokens": 6, "prompt_tokens": 16}


def without_the_control(comparison: dict[str, Any]) -> dict[str, Any]:
    """Everything that is said of the other arms."""
    metrics = {
        key: {
            "noise_floor": entry["noise_floor"],
            "verdict": entry["verdict"],
            "arms": {arm: value for arm, value in entry["arms"].items() if arm != "slowed"},
            "effects": {arm: value for arm, value in entry["effects"].items() if arm != "slowed"},
        }
        for key, entry in comparison["metrics"].items()
    }
    kept = {name: comparison[name] for name in ("cost", "memory", "scope", "hard_limits", "valid")}
    return {"metrics": metrics, **kept}


@pytest.fixture
def compared(build_study: Callable[..., Path]) -> Callable[[int], tuple[dict[str, Any], dict[str, Any]]]:
    """`compared(delay_us)`: comparison and decision of the same study with this delay in its control."""

    def make(delay_us: int) -> tuple[dict[str, Any], dict[str, Any]]:
        study = load_study(build_study(study=f"d{delay_us}", slowed_delay_us=delay_us, **FIELDS))
        comparison = compare(study)
        return comparison, decide(study.plan, comparison)

    return make


def test_a_known_delay_enters_no_number_about_another_arm(
    compared: Callable[[int], tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    (short, one), (long, other) = compared(5_000), compared(60_000)
    assert short["valid"] is long["valid"] is True
    key = "tpot_ms/p50" if "tpot_ms/p50" in short["metrics"] else "tpot_ms"
    ratios = [found["metrics"][key]["effects"]["slowed"]["ratio"] for found in (short, long)]
    assert 1.05 < ratios[0] < ratios[1] / 2  # the two controls differ, and much
    assert without_the_control(short) == without_the_control(long)
    for name in ("decision", "fired", "guardrails", "primary"):
        assert one[name] == other[name]
