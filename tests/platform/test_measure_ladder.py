"""Ladders of studies: deltas by hand, interaction, and what does not fit together."""

from __future__ import annotations

import math
from typing import Any

import pytest

from counterproof.errors import InputError
from counterproof.measure.ladder import Rung, climb

WAVE = [0.01, -0.01, 0.02, -0.02, 0.005, -0.005]
BOTTOM = {"engine.a": 0, "engine.b": 0}


def rung(
    study: str, base: dict[str, int], path: str, gain: float, *, wave: float = 1.0, **changes: Any
) -> Rung:
    top = {**base, path: 1}
    plan = {
        "study": study,
        "primary": {"metric": "tpot_ms", "statistic": "p50", "better": "lower"},
        "factor": {"path": path, "baseline": 0, "candidate": 1},
        "arms": {"baseline": {"config": {**base, "workload.x": 1}}, "candidate": {"config": top}},
        **changes,
    }
    d = [-(gain + wave * w) for w in WAVE]
    comparison = {"valid": True, "final": True, "metrics": {"tpot_ms": {"effects": {"candidate": {"d": d}}}}}
    return Rung(plan, comparison)


def ladder(gain_b: float = 0.1) -> list[Rung]:
    return [rung("s1", BOTTOM, "engine.a", 0.2), rung("s2", {**BOTTOM, "engine.a": 1}, "engine.b", gain_b)]


def test_steps_and_total_by_hand() -> None:
    found = climb(ladder())
    assert [one["gain"] for one in found["steps"]] == pytest.approx([math.expm1(0.2), math.expm1(0.1)])
    assert found["steps"][0]["name"] == "a: 0 -> 1"
    assert found["total"]["gain"] == pytest.approx(math.expm1(0.3))
    # Two equal variances of 5 degrees of freedom each: together 10, t(.975, 10) = 2.228139.
    variance = sum(w * w for w in WAVE) / 5 / 6
    half = 2.228139 * math.sqrt(2 * variance)
    assert found["total"]["ci_high"] == pytest.approx(math.expm1(0.3 + half), rel=1e-6)
    assert (found["interaction"], found["creditable"]) == (None, None)
    assert "0 of 2 factors" in found["reason"]


@pytest.mark.parametrize(("alone_b", "creditable"), [(0.1, True), (0.3, False)])
def test_interaction_decides_who_may_be_credited(alone_b: float, creditable: bool) -> None:
    alone = [rung("s1", BOTTOM, "engine.a", 0.2), rung("s3", BOTTOM, "engine.b", alone_b)]
    found = climb(ladder(), alone=alone)
    assert found["interaction"]["gain"] == pytest.approx(math.expm1(0.1 - alone_b), abs=1e-12)
    assert found["creditable"] is creditable
    assert ("interact" in found["reason"]) is True


def test_leave_one_out() -> None:
    top_without_a = rung("s4", {**BOTTOM, "engine.b": 1}, "engine.a", 0.15)
    found = climb(ladder(), without=[top_without_a])
    assert found["without"][0]["gain"] == pytest.approx(math.expm1(0.15))


def test_identical_blocks_have_no_width() -> None:
    found = climb([rung("s1", BOTTOM, "engine.a", 0.2, wave=0.0)])
    assert [found["total"][k] for k in ("ci_low", "ci_high")] == pytest.approx([math.expm1(0.2)] * 2)


def spoil_metric(rungs: list[Rung]) -> None:
    rungs[1].plan["primary"]["metric"] = "ttft_ms"  # type: ignore[index]


def spoil_chain(rungs: list[Rung]) -> None:
    rungs[1].plan["arms"]["baseline"]["config"]["engine.a"] = 2


def spoil_valid(rungs: list[Rung]) -> None:
    rungs[0].comparison["valid"] = False  # type: ignore[index]


def spoil_blocks(rungs: list[Rung]) -> None:
    rungs[0].comparison["metrics"]["tpot_ms"]["effects"]["candidate"]["d"] = [0.1] * 5


def spoil_factor(rungs: list[Rung]) -> None:
    rungs[0].plan["factor"] = None  # type: ignore[index]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_metric, "another primary metric"),
        (spoil_chain, "the baseline of s2 is not the candidate of s1"),
        (spoil_valid, "not valid, finished evidence"),
        (spoil_blocks, "at least 6 blocks"),
        (spoil_factor, "calibration"),
    ],
)
def test_what_does_not_fit_is_refused(spoil: Any, message: str) -> None:
    rungs = ladder()
    spoil(rungs)
    with pytest.raises(InputError, match=message):
        climb(rungs)


def test_studies_beside_the_ladder_must_belong_to_it() -> None:
    with pytest.raises(InputError, match="no step of the ladder"):
        climb(ladder(), alone=[rung("s5", BOTTOM, "engine.c", 0.1)])
    with pytest.raises(InputError, match="is not the candidate"):
        climb(ladder(), without=[rung("s6", BOTTOM, "engine.a", 0.1)])
    with pytest.raises(InputError, match="at least one"):
        climb([])
