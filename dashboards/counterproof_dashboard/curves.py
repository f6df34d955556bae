"""Curves of single requests and of time: the distribution of latency and the timeline of memory.

Aggregation keeps every curve at `MOST_POINTS` points by exact order statistics (distributions) and by the highest
value of each time bin (memory), so that no request and no peak is left out by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from counterproof_dashboard import theme
from counterproof_dashboard.axes import log_domain, log_ticks

MOST_POINTS = 513
ECDF_COLUMNS = ("arm", "curve", "value", "fraction")
BAND_COLUMNS = ("arm", "value", "low", "high")
TIMELINE_COLUMNS = ("arm", "run", "seconds", "value")
POOLED = "pooled"


def ecdf_points(values: NDArray[np.float64], total: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The empirical distribution of `values` among `total` requests, as at most MOST_POINTS (value, fraction).

    `total` counts failed requests too: they stand at +inf, so the curve ends below 1. Fractions are exact at the
    returned values; with more values than points, order statistics at equal steps are returned, lowest and
    highest always among them. The first point has fraction 0. Empty input gives empty arrays.
    """
    ordered = np.sort(values[np.isfinite(values)])
    if ordered.size == 0 or total <= 0:
        return np.empty(0), np.empty(0)
    ranks = np.arange(1, ordered.size + 1)
    if ordered.size > MOST_POINTS - 1:
        ranks = np.unique(np.ceil(np.linspace(1, ordered.size, MOST_POINTS - 1)).astype(int))
    points = np.concatenate([ordered[:1], ordered[ranks - 1]])
    return points, np.concatenate([[0.0], ranks / total])


def dkw(total: int, alpha: float = 0.05) -> float:
    """Half-width of the Dvoretzky-Kiefer-Wolfowitz band: sqrt(ln(2/alpha) / 2n), for independent requests."""
    return math.sqrt(math.log(2 / alpha) / (2 * total)) if total > 0 else 1.0


def ecdf_frames(samples: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Curves (ECDF_COLUMNS) and pooled bands (BAND_COLUMNS) of `samples`: arm, block, value (+inf = failed)."""
    curves: list[pd.DataFrame] = []
    bands: list[pd.DataFrame] = []
    for arm, rows in samples.groupby("arm", sort=False):
        for block, part in rows.groupby("block", sort=True):
            x, y = ecdf_points(part["value"].to_numpy(float), len(part))
            curves.append(pd.DataFrame({"arm": arm, "curve": f"block {block}", "value": x, "fraction": y}))
        x, y = ecdf_points(rows["value"].to_numpy(float), len(rows))
        curves.append(pd.DataFrame({"arm": arm, "curve": POOLED, "value": x, "fraction": y}))
        width = dkw(len(rows))
        low, high = np.clip(y - width, 0, 1), np.clip(y + width, 0, 1)
        bands.append(pd.DataFrame({"arm": arm, "value": x, "low": low, "high": high}))
    return _stack(curves, ECDF_COLUMNS), _stack(bands, BAND_COLUMNS)


def _stack(parts: list[pd.DataFrame], columns: tuple[str, ...]) -> pd.DataFrame:
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(columns))


def timeline_points(seconds: NDArray[np.float64], values: NDArray[np.float64]) -> pd.DataFrame:
    """At most MOST_POINTS (seconds, value): the highest value of each time bin, at the time it was seen."""
    known = np.isfinite(values) & np.isfinite(seconds)
    frame = pd.DataFrame({"seconds": seconds[known], "value": values[known]})
    if len(frame) <= MOST_POINTS:
        return frame.sort_values("seconds", ignore_index=True)
    span = float(frame["seconds"].max() - frame["seconds"].min()) or 1.0
    share = (frame["seconds"] - frame["seconds"].min()) / span
    bins = np.minimum((share * MOST_POINTS).astype(int), MOST_POINTS - 1)
    highest = frame.groupby(bins)["value"].idxmax()
    return frame.loc[highest].sort_values("seconds", ignore_index=True)


def ecdf(
    curves: pd.DataFrame,
    band: pd.DataFrame,
    *,
    title: str,
    subtitle: list[str],
    unit: str = "ms",
    reach: Sequence[float] | None = None,
    mode: str = theme.LIGHT,
) -> alt.LayerChart:
    """Thin lines: each block. Thick lines: all blocks of an arm together, with its DKW band.

    The value axis is logarithmic unless a value is 0 or below. `reach`: values that the axis must hold (charts side
    by side share them); None takes those of the curves.
    """
    x = _value_axis(curves["value"].dropna().tolist() if reach is None else list(reach), unit)
    y = _share_axis("fraction")
    colour = _arm_colour(curves, mode)
    tooltip = [
        "arm:N",
        "curve:N",
        alt.Tooltip("value:Q", format=",.4~r", title=unit),
        alt.Tooltip("fraction:Q", format=".1%"),
    ]
    line = {"interpolate": "step-after", "clip": True}
    layers = [
        alt.Chart(band)
        .mark_area(interpolate="step-after", opacity=0.14, clip=True)
        .encode(x=x, y=_share_axis("low"), y2="high:Q", color=colour),
        alt.Chart(curves[curves["curve"] != POOLED])
        .mark_line(strokeWidth=0.9, opacity=0.5, **line)
        .encode(x=x, y=y, color=colour, detail="curve:N", tooltip=tooltip),
        alt.Chart(curves[curves["curve"] == POOLED])
        .mark_line(strokeWidth=2.8, **line)
        .encode(x=x, y=y, color=colour, tooltip=tooltip),
    ]
    chart = alt.layer(*layers).properties(
        title=theme.titled(title, subtitle, mode), width="container", height=430
    )
    return chart.configure_view(strokeWidth=0).configure_axis(gridOpacity=0.35, domain=False)


def _arm_colour(frame: pd.DataFrame, mode: str) -> alt.Color:
    """Every arm's own colour; the legend names those that are drawn."""
    present = [arm for arm in theme.ARM_ORDER if arm in set(frame["arm"])]
    legend = alt.Legend(title=None, orient="top", values=present, symbolOpacity=1)
    return alt.Color("arm:N", scale=theme.arm_scale(mode), legend=legend)


def _share_axis(field: str) -> alt.Y:
    return alt.Y(
        f"{field}:Q",
        title="share of all requests at or below",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format=".0%", values=[0, 0.25, 0.5, 0.75, 0.9, 1]),
    )


def _value_axis(numbers: list[float], unit: str) -> alt.X:
    if not numbers or min(numbers) <= 0:
        scale = alt.Scale(domain=[min(numbers, default=0.0), max(numbers, default=1.0)])
        return alt.X("value:Q", title=f"{unit} (linear scale)", scale=scale)
    low, high = log_domain(numbers) or (0.1, 10.0)
    axis = alt.Axis(values=log_ticks(low, high, most=10), format=",~r")
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return alt.X("value:Q", title=f"{unit} (log scale)", scale=scale, axis=axis)


def timeline(
    frame: pd.DataFrame, *, title: str, subtitle: list[str], unit: str, mode: str = theme.LIGHT
) -> alt.Chart:
    """One line a run, coloured by arm, over the seconds since the run's first sample (TIMELINE_COLUMNS)."""
    chart = (
        alt.Chart(frame)
        .mark_line(strokeWidth=1.3, opacity=0.75, interpolate="step-after")
        .encode(
            x=alt.X("seconds:Q", title="seconds since the run's first sample"),
            y=alt.Y("value:Q", title=unit, scale=alt.Scale(zero=True)),
            color=alt.Color(
                "arm:N", scale=theme.arm_scale(mode), legend=alt.Legend(title=None, orient="top")
            ),
            detail="run:N",
            tooltip=[
                "arm:N",
                "run:N",
                alt.Tooltip("seconds:Q", format=".2f"),
                alt.Tooltip("value:Q", format=",.4~r", title=unit),
            ],
        )
        .properties(title=theme.titled(title, subtitle, mode), width="container", height=360)
    )
    return chart.configure_view(strokeWidth=0).configure_axis(gridOpacity=0.35, domain=False)
