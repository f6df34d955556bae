"""Charts of where time and memory went: stage times block by block, and one run's memory over its phases.

A data frame in, an Altair chart out, as in `charts`.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from counterproof_dashboard import theme

STAGE_COLUMNS = ("arm", "block", "name", "ms")
BAND_COLUMNS = ("start", "end", "phase")
LINE_COLUMNS = ("seconds", "value")


def stage_blocks(
    frame: pd.DataFrame, *, title: str, subtitle: list[str], mode: str = theme.LIGHT
) -> alt.Chart:
    """One bar a run, its stages one after the other, arms of a block together (STAGE_COLUMNS)."""
    arms = [arm for arm in theme.ARM_ORDER if arm in set(frame["arm"])]
    labels = [f"block {block} · {arm}" for block in sorted(frame["block"].unique()) for arm in arms]
    drawn = frame.assign(
        run=[f"block {block} · {arm}" for block, arm in zip(frame["block"], frame["arm"], strict=True)],
        place=[theme.stage_place(name) for name in frame["name"]],
    )
    chart = (
        alt.Chart(drawn)
        .mark_bar(height=14)
        .encode(
            x=alt.X("ms:Q", stack="zero", title="mean time per successful request, ms"),
            y=alt.Y("run:N", sort=labels, title=None, axis=alt.Axis(ticks=False, labelLimit=240)),
            color=alt.Color(
                "name:N",
                scale=theme.stage_scale(drawn["name"]),
                legend=_legend(sorted(set(drawn["name"]), key=theme.stage_place)),
            ),
            order=alt.Order("place:Q"),
            tooltip=["run:N", alt.Tooltip("name:N", title="stage"), alt.Tooltip("ms:Q", format=",.3~f")],
        )
        .properties(title=theme.titled(title, subtitle, mode), width="container", height=alt.Step(20))
    )
    return chart.configure_view(strokeWidth=0).configure_axis(gridOpacity=0.35, domain=False)


def over_phases(
    lines: pd.DataFrame,
    bands: pd.DataFrame,
    *,
    arm: str,
    title: str,
    subtitle: list[str],
    unit: str,
    reach: tuple[float, float],
    total: float | None = None,
    mode: str = theme.LIGHT,
) -> alt.LayerChart:
    """One run's `lines` (LINE_COLUMNS) in the arm's colour, in front of its phases (`bands`: BAND_COLUMNS).

    reach   the seconds that the axis holds, equal for charts side by side
    total   drawn as a dashed line and part of the axis, e.g. the blocks that there are
    """
    scale = alt.Scale(domain=list(reach), nice=False)
    x = alt.X("seconds:Q", title="seconds since the run's first sample", scale=scale)
    y = alt.Y("value:Q", title=unit, scale=alt.Scale(zero=True))
    layers: list[alt.Chart] = []
    if not bands.empty:
        layers.append(
            alt.Chart(bands)
            .mark_rect(opacity=0.3, clip=True)
            .encode(
                x=alt.X("start:Q", scale=scale, title="seconds since the run's first sample"),
                x2="end:Q",
                color=alt.Color(
                    "phase:N",
                    scale=theme.phase_scale(),
                    legend=_legend([p for p in theme.PHASE_ORDER if p in set(bands["phase"])]),
                ),
                tooltip=["phase:N", alt.Tooltip("start:Q", format=".3f"), alt.Tooltip("end:Q", format=".3f")],
            )
        )
    layers.append(
        alt.Chart(lines)
        .mark_line(color=theme.arm_colour(arm, mode), strokeWidth=1.8, interpolate="step-after", clip=True)
        .encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip("seconds:Q", format=".2f"),
                alt.Tooltip("value:Q", format=",.4~r", title=unit),
            ],
        )
    )
    if total is not None:
        rule = alt.Chart(pd.DataFrame({"value": [total]}))
        layers.append(rule.mark_rule(color=theme.band("rule", mode), strokeDash=[4, 3]).encode(y=y))
    chart = alt.layer(*layers).properties(
        title=theme.titled(title, subtitle, mode), width="container", height=260
    )
    return chart.configure_view(strokeWidth=0).configure_axis(gridOpacity=0.35, domain=False)


def _legend(present: list[str]) -> alt.Legend:
    """The names that are drawn, above the chart."""
    return alt.Legend(title=None, orient="top", values=present, symbolOpacity=1, labelLimit=320)
