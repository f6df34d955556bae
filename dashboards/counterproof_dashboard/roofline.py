"""Where both arms stand against the machine's roofs: rows of the comparison's `bottleneck`, and their chart.

Source of the model: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009. Nothing is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

import altair as alt
import pandas as pd

from counterproof.measure.bottleneck import NAMES
from counterproof_dashboard import theme
from counterproof_dashboard.axes import log_ticks
from counterproof_dashboard.data import Study
from counterproof_dashboard.findings import flag, get, text
from counterproof_dashboard.text import NOT_RECORDED, number, percent, significant


@dataclass(frozen=True)
class Point:
    """One arm: operations a byte, operations and bytes a second, and the parts of both roofs that it used."""

    arm: str
    intensity: float
    flops_s: float
    bytes_s: float | None
    arithmetic_used: float
    memory_used: float | None
    bound_by: str


@dataclass(frozen=True)
class Roofline:
    """Both arms and the roofs (operations a second; bytes a second), or why they cannot be drawn (`reason`)."""

    points: tuple[Point, ...] = ()
    peak: float = 0.0
    memory: float = 0.0
    phase: str = ""
    stated: str = ""
    real: str = ""
    confirmed: bool | None = None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """Whether the stated bottleneck was the real one, in one sentence."""
        if not self.points:
            return f"Not placed against the roofs: {self.reason}."
        if not self.stated:
            return f"The plan states no bottleneck; the baseline was bound by {self.real}."
        if self.confirmed is None:
            return f"Whether the stated bottleneck, {self.stated}, was the real one is {NOT_RECORDED}."
        if self.confirmed:
            return f"The stated bottleneck, {self.stated}, was the real one."
        return f"The stated bottleneck, {self.stated}, was NOT the real one: {self.real} was."


def of_study(study: Study) -> Roofline:
    """The placement that the comparison recorded. Anything missing or not positive gives no picture but a reason."""
    found = study.comparison.get("bottleneck")
    if not isinstance(found, dict):
        return Roofline(reason="the version that compared this study did not place it")
    arms = found.get("arms")
    points = [_point(str(arm), placed) for arm, placed in arms.items()] if isinstance(arms, dict) else []
    memory = number(get(found, "rates", "memory_bytes_s"))
    known = tuple(point for point in points if point is not None)
    if found.get("real") is None or not known or memory is None or memory <= 0:
        return Roofline(reason=text(found.get("reason")) or "the placement is not recorded")
    return Roofline(
        points=known,
        peak=max(point.flops_s / point.arithmetic_used for point in known),
        memory=memory,
        phase=text(found.get("phase")),
        stated=_name(found.get("stated")),
        real=_name(found.get("real")),
        confirmed=flag(found.get("confirmed")),
    )


def _point(arm: str, placed: object) -> Point | None:
    intensity, flops, used = (number(get(placed, k)) for k in ("intensity", "flops_s", "arithmetic_used"))
    if intensity is None or flops is None or used is None or min(intensity, flops, used) <= 0:
        return None
    return Point(
        arm,
        intensity,
        flops,
        number(get(placed, "bytes_s")),
        used,
        number(get(placed, "memory_used")),
        _name(get(placed, "bound_by")),
    )


def _name(kind: object) -> str:
    return NAMES.get(text(kind), text(kind))


def table(found: Roofline) -> pd.DataFrame:
    """Every number of the picture in words, one row an arm."""
    rows = [
        {
            "Arm": point.arm,
            "Bound by": point.bound_by or NOT_RECORDED,
            "Operations a byte": significant(point.intensity),
            "GFLOP/s": significant(point.flops_s / 1e9),
            "of the arithmetic roof": percent(point.arithmetic_used),
            "GB/s": NOT_RECORDED if point.bytes_s is None else significant(point.bytes_s / 1e9),
            "of the memory roof": percent(point.memory_used),
        }
        for point in found.points
    ]
    return pd.DataFrame(rows)


def chart(found: Roofline, *, title: str, subtitle: list[str], mode: str = theme.LIGHT) -> alt.LayerChart:
    """Both roofs and one point an arm, both axes logarithmic. `found` must have points."""
    ridge = found.peak / found.memory
    spread = [ridge, *(point.intensity for point in found.points)]
    low, high = min(spread) / 4, max(spread) * 4
    floor = min(found.memory * low, *(point.flops_s for point in found.points)) / 2e9
    x = _axis("intensity:Q", "operations a byte (log scale)", low, high)
    y = _axis("gflops:Q", "GFLOP/s (log scale)", floor, found.peak * 2.5 / 1e9)
    roof = pd.DataFrame(
        {
            "intensity": [low, ridge, high],
            "gflops": [found.memory * low / 1e9, found.peak / 1e9, found.peak / 1e9],
        }
    )
    points = pd.DataFrame(
        {
            "arm": [p.arm for p in found.points],
            "intensity": [p.intensity for p in found.points],
            "gflops": [p.flops_s / 1e9 for p in found.points],
            "bound": [p.bound_by for p in found.points],
        }
    )
    rule = theme.band("rule", mode)
    names = pd.DataFrame(
        {
            "intensity": [(ridge * high) ** 0.5, (low * ridge) ** 0.5],
            "gflops": [found.peak / 1e9, found.memory * (low * ridge) ** 0.5 / 1e9],
            "name": ["arithmetic roof", "memory roof"],
        }
    )
    colour = alt.Color("arm:N", scale=theme.arm_scale(mode), legend=None)
    tips = [
        "arm:N",
        "bound:N",
        alt.Tooltip("intensity:Q", format=",.3~r"),
        alt.Tooltip("gflops:Q", format=",.3~r"),
    ]
    layers = [
        alt.Chart(roof).mark_line(color=rule, strokeWidth=2).encode(x=x, y=y, order="intensity:Q"),
        *(
            alt.Chart(names.iloc[[place]])
            .mark_text(color=rule, align=align, dx=shift, dy=-9, fontStyle="italic")
            .encode(x=x, y=y, text="name:N")
            # Beside the slope the name ends left of it, so that the line never crosses its letters.
            for place, align, shift in ((0, "center", 0), (1, "right", -9))
        ),
        alt.Chart(points)
        .mark_point(filled=True, size=130, opacity=1)
        .encode(x=x, y=y, color=colour, shape=alt.Shape("arm:N", legend=None), tooltip=tips),
        alt.Chart(points)
        .mark_text(align="left", dx=11, fontWeight="bold")
        .encode(x=x, y=y, text="arm:N", color=colour),
    ]
    drawn = alt.layer(*layers).properties(
        title=theme.titled(title, subtitle, mode), width="container", height=340
    )
    return drawn.configure_view(strokeWidth=0).configure_axis(gridOpacity=0.35, domain=False)


def _axis(field: str, title: str, low: float, high: float) -> alt.X | alt.Y:
    kind = alt.X if field.startswith("intensity") else alt.Y
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return kind(
        field, title=title, scale=scale, axis=alt.Axis(values=log_ticks(low, high, most=7), format=",~r")
    )
