"""Author and replication beside each other, and their difference inside or outside the band of equivalence."""

from __future__ import annotations

import altair as alt
import pandas as pd

from counterproof_dashboard import theme
from counterproof_dashboard.axes import log_domain, log_ticks
from counterproof_dashboard.replication import Outcome

COLUMNS = ("label", "ratio", "low", "high")


def gains(outcome: Outcome) -> pd.DataFrame:
    """COLUMNS: the gain that the author sealed and the one that the replay measured; rows without a ratio are left out."""
    lines = [
        ("author", outcome.author, *outcome.author_interval),
        ("replication", outcome.replay, *outcome.replay_interval),
    ]
    return _frame(lines)


def difference(outcome: Outcome) -> pd.DataFrame:
    """COLUMNS: replication over author."""
    middle, low, high = outcome.difference
    return _frame([("replication ÷ author", middle, low, high)])


def _frame(lines: list[tuple[str, float | None, float | None, float | None]]) -> pd.DataFrame:
    known = [line for line in lines if line[1] is not None and line[1] > 0]
    return pd.DataFrame(known, columns=list(COLUMNS))


def intervals(
    frame: pd.DataFrame,
    *,
    title: str,
    subtitle: list[str],
    axis: str,
    band: tuple[float, float] | None = None,
    line: float | None = None,
    mode: str = theme.LIGHT,
) -> alt.LayerChart:
    """Points with 90 % intervals on a logarithmic axis, around 1 = no difference.

    band   drawn behind them, e.g. where two gains count as equal
    line   drawn dashed, e.g. the smallest gain of interest
    """
    drawn = frame.assign(low=frame["low"].fillna(frame["ratio"]), high=frame["high"].fillna(frame["ratio"]))
    edges = [*(band or ()), *([] if line is None else [line])]
    low, high = log_domain([*drawn["low"], *drawn["high"], 1.0, *edges]) or (0.9, 1.1)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    ticks = alt.Axis(values=log_ticks(low, high), labelExpr="format(datum.value, ',~r') + '×'")
    x = alt.X("ratio:Q", title=axis, scale=scale, axis=ticks)
    y = alt.Y("label:N", sort=None, title=None, axis=alt.Axis(labelLimit=300, labelFontSize=12, ticks=False))
    rule, neutral = theme.band("rule", mode), theme.band("noise", mode)
    colour = alt.Color(
        "label:N",
        scale=alt.Scale(
            domain=["author", "replication", "replication ÷ author"],
            range=[theme.arm_colour("baseline", mode), theme.arm_colour("candidate", mode), rule],
        ),
        legend=None,
    )
    tips = ["label:N", *(alt.Tooltip(f"{name}:Q", format=".4f") for name in COLUMNS[1:])]
    layers: list[alt.Chart] = []
    if band is not None:
        edge = alt.Chart(pd.DataFrame({"from": [band[0]], "to": [band[1]]}))
        layers.append(
            edge.mark_rect(color=neutral, opacity=0.35).encode(
                x=alt.X("from:Q", scale=scale, title=axis, axis=ticks), x2="to:Q"
            )
        )
    for place in [1.0, *([] if line is None else [line])]:
        one = alt.Chart(pd.DataFrame({"ratio": [place]}))
        layers.append(one.mark_rule(color=rule, strokeDash=[4, 3] if place == 1.0 else [1, 3]).encode(x=x))
    layers += [
        alt.Chart(drawn)
        .mark_rule(strokeWidth=3)
        .encode(
            x=alt.X("low:Q", scale=scale, title=axis, axis=ticks),
            x2="high:Q",
            y=y,
            color=colour,
            tooltip=tips,
        ),
        alt.Chart(drawn)
        .mark_point(filled=True, size=120, opacity=1)
        .encode(x=x, y=y, color=colour, tooltip=tips),
    ]
    chart = alt.layer(*layers).properties(
        title=theme.titled(title, subtitle, mode), width="container", height=alt.Step(48)
    )
    return chart.configure_view(strokeWidth=0).configure_axis(gridOpacity=0.35, domain=False)
