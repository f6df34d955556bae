"""Placing an arm against the roofs: rates by hand, every verdict, and what the report says of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from counterproof.decide.roofline_chart import roofline
from counterproof.measure.bottleneck import judge_bottleneck, of_comparison, place, sentence

RATES = {"memory_bytes_s": 50e9, "flops_s": {"bf16": 1000e9}}
WEIGHTS = 270_000_000


def run(
    *,
    decode_ns: int = 10_000_000,
    flops: int = 270_000_000,
    kv_bytes: int = 1_000_000,
    other_ns: int = 100_000,
    queue_ns: int = 0,
    counters: dict[str, int] | None = None,
    waiting: int = 0,
    used: int = 10,
) -> Any:
    """A run of one prefill step and two decode steps; the second decode step shares its time with a prefill."""
    rows = [
        (0, "compute", "prefill", 20_000_000, 9_000_000_000, 0),
        (1, "compute", "decode", decode_ns, flops, kv_bytes),
        (2, "compute", "decode", decode_ns, flops, kv_bytes),
        (2, "compute", "prefill", decode_ns, 5_000_000, 0),
        (1, "output", "sample", other_ns, 0, 0),
        (0, "input", "queue", queue_ns, 0, 0),
    ]
    columns = ["step", "stage", "phase", "share_ns", "flops", "bytes"]
    resources = [("engine", 1, waiting, used), ("sampler", None, None, None)]
    return SimpleNamespace(
        stages=pd.DataFrame(rows, columns=columns),
        effective={"dtype": "bf16", "model.weight_bytes": WEIGHTS, "kv_cache.blocks": 100},
        counters=counters or {},
        resources=pd.DataFrame(resources, columns=["source", "running", "waiting", "kv_blocks_used"]),
    )


def study(runs: dict[str, list[Any]], *, attacks: str | None, rates: dict[str, Any] | None = RATES) -> Any:
    return SimpleNamespace(
        plan={
            "factor": {"attacks": attacks},
            "primary": {"metric": "tpot_ms"},
            "roofline": None if rates is None else {"rates": rates},
        },
        complete_blocks=[0],
        arms=list(runs),
        of=lambda arm: runs[arm],
    )


def test_rates_by_hand() -> None:
    placed = place([run()], "decode", RATES)
    assert placed is not None
    # The weights count once for step 1 and by half, the decode's share of the time, for step 2.
    size = 1.5 * WEIGHTS + 2_000_000
    assert placed.bytes_s == pytest.approx(size / 0.02)
    assert placed.flops_s == pytest.approx(540_000_000 / 0.02)
    assert placed.memory_used == pytest.approx(placed.bytes_s / 50e9)
    assert placed.arithmetic_used == pytest.approx(0.027)
    assert placed.bound_by == "memory_traffic"
    assert placed.outside_compute == pytest.approx(0.1 / 50.1)


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({"flops": 8_000_000_000}, "arithmetic"),
        ({"decode_ns": 100_000_000}, "scheduling"),
        ({"other_ns": 60_000_000}, "scheduling"),
        ({"queue_ns": 900_000_000}, "memory_traffic"),
        ({"counters": {"preemptions": 1}}, "memory_capacity"),
        ({"waiting": 3, "used": 96}, "memory_capacity"),
        ({"waiting": 3, "used": 94}, "memory_traffic"),
    ],
)
def test_every_verdict(fields: dict[str, Any], bound: str) -> None:
    placed = place([run(**fields)], "decode", RATES)
    assert placed is not None and placed.bound_by == bound


def test_the_stated_bottleneck_is_held_against_the_baselines() -> None:
    arms = {"baseline": [run(flops=8_000_000_000)], "candidate": [run()]}
    found = judge_bottleneck(study(arms, attacks="arithmetic"))
    assert (found["real"], found["confirmed"], found["phase"]) == ("arithmetic", True, "decode")
    assert found["arms"]["candidate"]["bound_by"] == "memory_traffic"
    assert sentence(found).startswith("The stated bottleneck, arithmetic, was the real one.")
    wrong = judge_bottleneck(study(arms, attacks="memory_traffic"))
    assert wrong["confirmed"] is False
    assert "was NOT the real one (arithmetic was)" in sentence(wrong)
    picture = roofline(found)
    assert picture.count("<circle") == 2 and "memory roof" in picture
    assert 'class="thick one"' in picture  # a path without a class of its own would be filled


def test_what_cannot_be_placed_says_why() -> None:
    arms = {"baseline": [run()], "candidate": [run()]}
    unmeasured = judge_bottleneck(study(arms, attacks="arithmetic", rates=None))
    assert unmeasured["real"] is None and "doctor --roofline" in unmeasured["reason"]
    idle = judge_bottleneck(study({"baseline": [run(flops=0)]}, attacks=None))
    assert "counted no work in decode" in idle["reason"]
    assert "did not place it" in sentence(of_comparison({}))
    assert roofline(of_comparison({})) == ""
