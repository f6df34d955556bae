"""Scales, ticks, words and single charts."""

from __future__ import annotations

import math

import pytest

from counterproof.decide.charts import Curve, ForestRow, ecdf, forest, waterfall
from counterproof.decide.svg import Scale, Svg, step_path
from counterproof.decide.words import byte_words, change, number, percent, ratio_words


def test_scales_map_ends_and_middle_and_clamp() -> None:
    linear = Scale(0, 10, 100, 200)
    assert [linear(v) for v in (0, 5, 10, 20, -5)] == [100, 150, 200, 200, 100]
    logarithmic = Scale(1, 100, 0, 200, log=True)
    assert logarithmic(10) == pytest.approx(100)
    assert logarithmic(0) == 0
    assert Scale(3, 3, 0, 10)(3) == 5


def test_ticks_are_round_and_inside() -> None:
    assert Scale(0, 10, 0, 1).ticks(5) == [0, 2, 4, 6, 8, 10]
    assert Scale(0.5, 2, 0, 1, log=True).ticks(5) == pytest.approx([0.5, 1, 2])
    for scale in (Scale(0.97, 1.04, 0, 1, log=True), Scale(1, 1000, 0, 1, log=True), Scale(0.2, 0.9, 0, 1)):
        assert 2 <= len(scale.ticks(5)) <= 12
        assert all(scale.low * 0.999 <= tick <= scale.high * 1.001 for tick in scale.ticks(5))


def test_text_is_escaped_everywhere() -> None:
    svg = Svg(10, 10, 'a"<b>')
    svg.text((1, 2), "<script>&")
    svg.rect(0, 0, 1, 1, "x", "</title><script>")
    drawn = svg.render()
    assert "<script>" not in drawn
    assert "&lt;script&gt;&amp;" in drawn
    assert 'aria-label="a&quot;&lt;b&gt;"' in drawn


def test_distribution_with_failures_stays_below_one() -> None:
    x, y = Scale(0, 10, 0, 100), Scale(0, 1, 0, 100)
    assert step_path([1, 2], x, y, 2)[-1] == (20, 100)
    assert step_path([1, 2], x, y, 4)[-1] == (100, 50)
    assert step_path([], x, y, 4) == []
    assert "no samples" in ecdf([Curve("baseline", "baseline", [[math.inf, math.inf]])], "latency")
    assert "no samples" in ecdf([], "latency")


def test_forest_draws_points_intervals_bands_and_margins() -> None:
    row = ForestRow("latency", 0.5, 0.45, 0.55, 0.03, 1.03, "candidate")
    drawn = forest([row, ForestRow("gone", None, None, None, None, None, "candidate")])
    assert drawn.count('class="whisker candidate"') == 1
    assert drawn.count('class="noise"') == 1
    assert drawn.count('class="margin"') == 1
    assert "0.5000 [0.4500, 0.5500]" in drawn
    assert "not measured" in drawn


def bar(stage: str, delta: float) -> dict[str, object]:
    return {
        "stage": stage,
        "phase": "x",
        "baseline_ms": 50.0,
        "candidate_ms": 50.0 + delta,
        "delta_ms": delta,
        "ci_low": delta - 1,
        "ci_high": delta + 1,
    }


def test_waterfall_tells_better_worse_even_and_unresolved() -> None:
    total = {"baseline_ms": 100.0, "candidate_ms": 70.0, "delta_ms": -30.0, "ci_low": -31.0, "ci_high": -29.0}
    stages = {
        "waterfall": [bar("compute", -40.0), bar("state", 6.0), bar("output", 0.0)],
        "total": total,
        "residual": bar("", 4.0),
        "resolved": True,
    }
    drawn = waterfall(stages)
    for kind in ("better", "worse", "even", "residual", "baseline", "candidate"):
        assert drawn.count(f'class="fill {kind}"') == 1, kind
    assert 'class="fill unresolved"' in waterfall({**stages, "resolved": False})
    assert waterfall({"waterfall": [], "total_ms": None}) == ""


def test_numbers_in_words() -> None:
    assert number(12.345, "ms") == "12.35 ms"
    assert number(0.0, "bytes") == "0 B"
    assert number(None, "ms") == number(math.inf, "ms") == "not measured"
    assert number(0.001, "fraction") == "0.1 %"
    assert byte_words(3 * 1024 * 1024) == "3.00 MiB"
    assert change(0.49) == "-51.0 %"
    assert change(4.0) == "4.000 times"
    assert percent(None) == change(None) == "not measured"
    assert ratio_words(0.5, None, None) == "0.5000 (no interval)"
    assert ratio_words(None, None, None) == "not measured"
