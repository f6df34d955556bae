"""The charts as specifications: what is encoded, what is titled, and that no value is lost or made up."""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest

from counterproof_dashboard import charts, curves, theme

SUBTITLE = ["24 sealed timed runs in 6 blocks · 0 lost · 0 failed"]


@pytest.fixture(autouse=True)
def _no_row_limit() -> Any:
    with alt.data_transformers.enable("default", max_rows=None):
        yield


def row(label: str, ratio: float | None, **fields: Any) -> dict[str, Any]:
    base: dict[str, Any] = dict.fromkeys(charts.FOREST_COLUMNS)
    low = None if ratio is None else ratio * 0.97
    high = None if ratio is None else ratio * 1.03
    return {**base, "label": label, "ratio": ratio, "ci_low": low, "ci_high": high, "note": "", **fields}


@pytest.fixture
def forest_frame() -> pd.DataFrame:
    noise = {"noise_low": 1 / 1.02, "noise_high": 1.02}
    margin = {"margin_low": 1.0, "margin_high": 1.03}
    return pd.DataFrame(
        [
            row("TPOT\n0.5×", 0.5, verdict="gain", **noise),
            row("TTFT\n1.0×", 1.0, verdict="no claim", **noise, **margin),
            row("KV bytes\n+1.76 MiB", None, verdict="not measured", note="a value is 0"),
        ]
    )


def layers(chart: Any) -> list[dict[str, Any]]:
    return list(chart.to_dict()["layer"])


def data_of(chart: Any, layer: dict[str, Any]) -> list[dict[str, Any]]:
    return list(chart.to_dict()["datasets"][layer["data"]["name"]])


def mark(layer: dict[str, Any]) -> str:
    return str(layer["mark"]["type"])


def test_forest_draws_interval_noise_margin_and_the_line_of_no_change(forest_frame: pd.DataFrame) -> None:
    chart = charts.forest(forest_frame, title="What moved", subtitle=SUBTITLE)
    found = layers(chart)
    assert [mark(layer) for layer in found] == ["bar", "bar", "rule", "rule", "point", "text"]
    margin, noise, one, interval, point, words = found
    assert data_of(chart, margin)[0]["margin_high"] == 1.03
    assert len(data_of(chart, noise)) == 2
    assert data_of(chart, one) == [{"ratio": 1.0}]
    assert interval["encoding"]["x"]["field"] == "ci_low"
    assert interval["encoding"]["x2"]["field"] == "ci_high"
    assert [r["ratio"] for r in data_of(chart, point)] == [0.5, 1.0]
    assert [r["note"] for r in data_of(chart, words)] == ["a value is 0"]
    assert point["encoding"]["x"]["scale"]["type"] == "log"
    assert point["encoding"]["color"]["field"] == point["encoding"]["shape"]["field"] == "verdict"


def test_forest_holds_every_interval_and_band(forest_frame: pd.DataFrame) -> None:
    spec = layers(charts.forest(forest_frame, title="t", subtitle=SUBTITLE))[4]["encoding"]["x"]
    low, high = spec["scale"]["domain"]
    assert low < 0.5 * 0.97
    assert high > 1.03
    assert 1 in spec["axis"]["values"]


def test_a_row_without_a_ratio_is_words_and_never_a_point(forest_frame: pd.DataFrame) -> None:
    chart = charts.forest(forest_frame.iloc[[2]], title="t", subtitle=SUBTITLE)
    for layer in layers(chart)[3:5]:
        assert data_of(chart, layer) == []
    assert len(data_of(chart, layers(chart)[5])) == 1


def test_every_chart_prints_its_title_and_counts(forest_frame: pd.DataFrame) -> None:
    samples = pd.DataFrame({"arm": "baseline", "block": 0, "value": [1.0, 2.0]})
    lines, band = curves.ecdf_frames(samples)
    time = pd.DataFrame({"arm": ["baseline"], "run": ["00-baseline-1"], "seconds": [0.0], "value": [1.0]})
    bars = pd.DataFrame(
        [["decode\n−1 ms", 0.0, -1.0, -1.0, -1.1, -0.9, "faster", "−1 ms"]],
        columns=list(charts.WATERFALL_COLUMNS),
    )
    dots = pd.DataFrame([["candidate", "block 0", 0.5]], columns=list(charts.BLOCK_COLUMNS))
    means = pd.DataFrame([["candidate", 0.5, 0.4, 0.6]], columns=list(charts.EFFECT_COLUMNS))
    for chart in (
        charts.forest(forest_frame, title="T", subtitle=SUBTITLE),
        charts.waterfall(bars, title="T", subtitle=SUBTITLE),
        charts.blocks(dots, means, title="T", subtitle=SUBTITLE),
        curves.ecdf(lines, band, title="T", subtitle=SUBTITLE),
        curves.timeline(time, title="T", subtitle=SUBTITLE, unit="MiB"),
    ):
        spec = chart.to_dict()
        assert spec["title"]["text"] == "T"
        assert spec["title"]["subtitle"] == SUBTITLE
        assert spec["width"] == "container"


def test_the_waterfall_floats_and_shows_the_residual() -> None:
    frame = pd.DataFrame(
        [
            ["decode\n−230 ms", 0.0, -230.0, -230.0, -235.0, -225.0, "faster", "−230 ms"],
            ["sample\n+2 ms", -230.0, -228.0, 2.0, np.nan, np.nan, "slower", "+2 ms"],
            ["residual\n−3 ms", -228.0, -231.0, -3.0, np.nan, np.nan, "residual", "−3 ms"],
            ["all\n−231 ms", 0.0, -231.0, -231.0, -236.0, -226.0, "total", "−231 ms"],
        ],
        columns=list(charts.WATERFALL_COLUMNS),
    )
    chart = charts.waterfall(frame, title="t", subtitle=SUBTITLE)
    zero, bars, whiskers = layers(chart)
    assert [mark(x) for x in (zero, bars, whiskers)] == ["rule", "bar", "rule"]
    drawn = data_of(chart, bars)
    assert [(r["start"], r["end"]) for r in drawn] == [(0, -230), (-230, -228), (-228, -231), (0, -231)]
    assert bars["encoding"]["y"]["sort"] == list(frame["label"])
    assert "residual" in bars["encoding"]["color"]["scale"]["domain"]
    assert len(data_of(chart, whiskers)) == 2


def test_blocks_show_every_block_of_every_arm() -> None:
    dots = pd.DataFrame(
        [[arm, f"block {b}", 1 + b / 100] for arm in ("candidate", "again", "slowed") for b in range(6)],
        columns=list(charts.BLOCK_COLUMNS),
    )
    means = pd.DataFrame([["slowed", 1.02, 1.0, 1.3]], columns=list(charts.EFFECT_COLUMNS))
    chart = charts.blocks(dots, means, title="t", subtitle=SUBTITLE)
    _, hollow, _, filled = layers(chart)
    assert len(data_of(chart, hollow)) == 18
    assert hollow["mark"]["filled"] is False
    assert filled["mark"]["filled"] is True
    assert hollow["encoding"]["x"]["scale"]["domain"][1] > 1.3
    assert hollow["encoding"]["y"]["sort"] == ["candidate", "again", "slowed"]


def test_ecdf_separates_blocks_from_the_pooled_curve() -> None:
    samples = pd.DataFrame({"arm": "baseline", "block": np.repeat([0, 1], 20), "value": np.arange(40) + 1.0})
    lines, band = curves.ecdf_frames(samples)
    chart = curves.ecdf(lines, band, title="t", subtitle=SUBTITLE)
    area, thin, thick = layers(chart)
    assert [mark(x) for x in (area, thin, thick)] == ["area", "line", "line"]
    assert thin["mark"]["strokeWidth"] < 1 < thick["mark"]["strokeWidth"]
    assert {r["curve"] for r in data_of(chart, thin)} == {"block 0", "block 1"}
    assert {r["curve"] for r in data_of(chart, thick)} == {curves.POOLED}
    assert thin["encoding"]["detail"]["field"] == "curve"
    assert thick["encoding"]["x"]["scale"]["type"] == "log"
    assert thick["encoding"]["y"]["scale"]["domain"] == [0, 1]
    assert thick["mark"]["interpolate"] == "step-after"


def test_ecdf_of_a_zero_has_a_linear_axis() -> None:
    samples = pd.DataFrame({"arm": "baseline", "block": 0, "value": [0.0, 0.02, 0.03]})
    chart = curves.ecdf(*curves.ecdf_frames(samples), title="t", subtitle=SUBTITLE)
    x = layers(chart)[2]["encoding"]["x"]
    assert x["scale"] == {"domain": [0.0, 0.03]}
    assert "linear" in x["title"]


def test_charts_side_by_side_share_their_axis() -> None:
    samples = pd.DataFrame({"arm": "baseline", "block": 0, "value": [10.0, 20.0]})
    chart = curves.ecdf(*curves.ecdf_frames(samples), title="t", subtitle=SUBTITLE, reach=[5.0, 500.0])
    low, high = layers(chart)[2]["encoding"]["x"]["scale"]["domain"]
    assert low < 5 < 500 < high


@pytest.mark.parametrize("mode", [theme.LIGHT, theme.DARK])
def test_an_arm_keeps_its_colour_whatever_else_is_shown(mode: str) -> None:
    both = pd.DataFrame({"arm": ["baseline", "slowed"], "block": 0, "value": [1.0, 2.0]})
    scales = []
    for samples in (both, both.iloc[[1]]):
        chart = curves.ecdf(*curves.ecdf_frames(samples), title="t", subtitle=SUBTITLE, mode=mode)
        colour = layers(chart)[2]["encoding"]["color"]
        scales.append(colour["scale"])
        assert colour["legend"]["values"] == list(samples["arm"])
    assert scales[0] == scales[1]
    assert len(set(scales[0]["range"])) == 4


@pytest.mark.parametrize("mode", [theme.LIGHT, theme.DARK])
def test_colours_stand_out_from_the_background(mode: str) -> None:
    background = 0.0 if mode == theme.DARK else 1.0
    colours = [theme.arm_colour(arm, mode) for arm in ("baseline", "candidate", "slowed")]
    colours += [theme.verdict_colour(name, mode) for name in theme.VERDICT_SHAPES]
    for colour in colours:
        light = luminance(colour)
        contrast = (max(light, background) + 0.05) / (min(light, background) + 0.05)
        assert contrast > (2.4 if colour == theme.verdict_colour("not measured", mode) else 2.9), (
            colour,
            contrast,
        )


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_hostile_labels_travel_as_data_only(forest_frame: pd.DataFrame) -> None:
    hostile = "</script><script>alert(1)</script>' + datum.x + '"
    frame = forest_frame.assign(label=[f"{hostile}\n1", "b\n2", "c\n3"])
    spec = charts.forest(frame, title="t", subtitle=SUBTITLE).to_dict()
    used = json.dumps({key: value for key, value in spec.items() if key != "datasets"})
    assert used.count("alert(1)") == used.count(json.dumps(f"{hostile}\n1")[1:-1])
    for layer in spec["layer"]:
        assert "alert" not in json.dumps(layer["encoding"].get("y", {}).get("axis", {}))
