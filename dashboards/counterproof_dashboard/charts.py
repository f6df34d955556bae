"""Comparison charts: a data frame in, an Altair chart out. Nothing here reads files or session state.

Each function names the columns it needs. Rows without a number are drawn as words, never as zero, and the counts
that the caller gives stand under every title.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from counterproof_dashboard import theme
from counterproof_dashboard.axes import log_domain, log_ticks

FOREST_COLUMNS = (
    "label",
    "ratio",
    "ci_low",
    "ci_high",
    "noise_low",
    "noise_high",
    "margin_low",
    "margin_high",
    "verdict",
    "note",
)
WATERFALL_COLUMNS = ("label", "start", "end", "delta", "low", "high", "kind", "shown")
BLOCK_COLUMNS = ("arm", "block", "ratio")
EFFECT_COLUMNS = ("arm", "ratio", "ci_low", "ci_high")
_SPLIT_LABEL = "split(datum.label, '\\n')"


def _ratio_axis(frame: pd.DataFrame, columns: list[str], title: str) -> alt.X:
    values = [float(v) for column in columns for v in frame[column].dropna()]
    low, high = log_domain([*values, 1.0, 0.985, 1.015]) or (0.9, 1.1)
    ticks = log_ticks(low, high)
    return alt.X(
        "ratio:Q",
        title=title,
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=ticks, labelExpr="format(datum.value, ',~r') + '×'", grid=True),
    )


def _label_axis(order: list[str], title: str | None = None) -> alt.Y:
    return alt.Y(
        "label:N",
        sort=order,
        title=title,
        axis=alt.Axis(labelExpr=_SPLIT_LABEL, labelLimit=340, labelFontSize=12, labelPadding=10, ticks=False),
    )


def forest(
    frame: pd.DataFrame, *, title: str, subtitle: list[str], mode: str = theme.LIGHT
) -> alt.LayerChart:
    """Ratios candidate / baseline with interval, margin band and noise band, one row per metric.

    `frame` has FOREST_COLUMNS; ratios are positive, missing ones are null. The rule at 1 means "no change".
    """
    order = list(frame["label"])
    x = _ratio_axis(frame, list(FOREST_COLUMNS[1:8]), "candidate ÷ baseline (log scale, 1× = no change)")
    y = _label_axis(order)
    measured = frame[frame["ratio"].notna()]
    colour = alt.Color(
        "verdict:N", scale=theme.verdict_scale(mode), legend=alt.Legend(title="verdict", orient="top")
    )
    tips = ["label", "ratio", "ci_low", "ci_high", "noise_low", "noise_high", "verdict", "note"]
    tooltip = [alt.Tooltip(f"{name}:{'N' if name in ('label', 'verdict', 'note') else 'Q'}") for name in tips]
    layers = [
        _band(frame, "margin_low", "margin_high", x, y, theme.band("margin", mode), 30, 0.5),
        _band(frame, "noise_low", "noise_high", x, y, theme.band("noise", mode), 14, 0.55),
        alt.Chart(pd.DataFrame({"ratio": [1.0]}))
        .mark_rule(color=theme.band("rule", mode), strokeDash=[4, 3])
        .encode(x=x),
        alt.Chart(measured)
        .mark_rule(strokeWidth=2.5)
        .encode(x=_same(x, "ci_low"), x2="ci_high:Q", y=y, color=colour, tooltip=tooltip),
        alt.Chart(measured)
        .mark_point(filled=True, size=110, opacity=1)
        .encode(
            x=x,
            y=y,
            color=colour,
            shape=alt.Shape("verdict:N", scale=theme.verdict_shapes(), legend=None),
            tooltip=tooltip,
        ),
        alt.Chart(frame[frame["ratio"].isna()])
        .mark_text(align="left", fontStyle="italic", color=theme.verdict_colour("not measured", mode))
        .encode(x=alt.value(6), y=y, text="note:N"),
    ]
    return _finish(alt.layer(*layers), title, subtitle, mode, height=alt.Step(44))


def _same(x: alt.X, field: str) -> alt.X:
    """The axis of `x` for another field of the same layered scale."""
    found = x.copy()
    found.shorthand = f"{field}:Q"
    return found


def _band(
    frame: pd.DataFrame, low: str, high: str, x: alt.X, y: alt.Y, colour: str, height: int, opacity: float
) -> alt.Chart:
    rows = frame[frame[low].notna() & frame[high].notna()]
    return (
        alt.Chart(rows)
        .mark_bar(color=colour, opacity=opacity, height=height)
        .encode(x=_same(x, low), x2=f"{high}:Q", y=y)
    )


def waterfall(
    frame: pd.DataFrame, *, title: str, subtitle: list[str], unit: str = "ms", mode: str = theme.LIGHT
) -> alt.LayerChart:
    """Which stage the difference came from: floating bars of candidate minus baseline, then residual and total.

    `frame` has WATERFALL_COLUMNS; `kind` is faster, slower, residual or total; `low`/`high` are the ends of the
    interval on the same axis as `end`, null where there is none.
    """
    order = list(frame["label"])
    kinds = ["faster", "slower", "residual", "total"]
    neutral, strong = theme.verdict_colour("no claim", mode), theme.band("rule", mode)
    colours = [theme.verdict_colour("gain", mode), theme.verdict_colour("loss", mode), neutral, strong]
    y = _label_axis(order)
    x = alt.X("start:Q", title=f"change against the baseline, {unit} (left of 0 = faster)")
    bars = (
        alt.Chart(frame)
        .mark_bar(height=20, opacity=0.85)
        .encode(
            x=x,
            x2="end:Q",
            y=y,
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=kinds, range=colours),
                legend=alt.Legend(title=None, orient="top"),
            ),
            tooltip=["label:N", "kind:N", alt.Tooltip("shown:N", title=f"change ({unit})")],
        )
    )
    whiskers = (
        alt.Chart(frame[frame["low"].notna() & frame["high"].notna()])
        .mark_rule(color=strong, strokeWidth=1.5)
        .encode(x=_same(x, "low"), x2="high:Q", y=y)
    )
    zero = (
        alt.Chart(pd.DataFrame({"start": [0.0]}))
        .mark_rule(color=theme.band("rule", mode), strokeDash=[4, 3])
        .encode(x=x)
    )
    return _finish(alt.layer(zero, bars, whiskers), title, subtitle, mode, height=alt.Step(40))


def blocks(
    dots: pd.DataFrame,
    effects: pd.DataFrame,
    *,
    title: str,
    subtitle: list[str],
    mode: str = theme.LIGHT,
) -> alt.LayerChart:
    """Every block's own ratio to the baseline (hollow), with the mean and interval of each arm (filled).

    `dots` has BLOCK_COLUMNS, `effects` EFFECT_COLUMNS. The controls `again` and `slowed` show what the set-up sees
    when nothing changed and when a known delay was put in.
    """
    ratios = pd.concat(
        [dots[["ratio"]], *[effects[[c]].set_axis(["ratio"], axis=1) for c in EFFECT_COLUMNS[1:]]]
    )
    x = _ratio_axis(ratios, ["ratio"], "arm ÷ baseline of the same block (log scale)")
    order = [arm for arm in theme.ARM_ORDER if arm in set(dots["arm"]) | set(effects["arm"])]
    y = alt.Y("arm:N", sort=order, title=None, axis=alt.Axis(ticks=False, labelFontSize=12, labelPadding=10))
    colour = alt.Color("arm:N", scale=theme.arm_scale(mode), legend=None)
    layers = [
        alt.Chart(pd.DataFrame({"ratio": [1.0]}))
        .mark_rule(color=theme.band("rule", mode), strokeDash=[4, 3])
        .encode(x=x),
        alt.Chart(dots)
        .mark_point(filled=False, size=70, strokeWidth=1.6, opacity=0.8)
        .encode(x=x, y=y, color=colour, tooltip=["arm:N", "block:N", alt.Tooltip("ratio:Q", format=".4f")]),
        alt.Chart(effects)
        .mark_rule(strokeWidth=3)
        .encode(x=_same(x, "ci_low"), x2="ci_high:Q", y=y, yOffset=alt.value(12), color=colour),
        alt.Chart(effects)
        .mark_point(filled=True, size=90, opacity=1, shape="diamond")
        .encode(
            x=x,
            y=y,
            yOffset=alt.value(12),
            color=colour,
            tooltip=["arm:N", "ratio:Q", "ci_low:Q", "ci_high:Q"],
        ),
    ]
    return _finish(alt.layer(*layers), title, subtitle, mode, height=alt.Step(44))


def _finish(
    chart: alt.LayerChart, title: str, subtitle: list[str], mode: str, *, height: object
) -> alt.LayerChart:
    return (
        chart.properties(title=theme.titled(title, subtitle, mode), width="container", height=height)
        .configure_view(strokeWidth=0)
        .configure_axis(gridOpacity=0.35, domain=False)
    )
