"""The roofline picture: operations a second over operations a byte, the two roofs, and where each arm stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterproof.decide.svg import Scale, Svg

WIDTH, HEIGHT = 520.0, 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 500.0, 16.0, 236.0


def roofline(found: Mapping[str, Any]) -> str:
    """One inline SVG from a comparison's `bottleneck`; an empty string where nothing was placed."""
    arms, rates = found["arms"], found.get("rates") or {}
    if found["real"] is None or not rates:
        return ""
    memory = float(rates["memory_bytes_s"])
    peak = max(p["flops_s"] / p["arithmetic_used"] for p in arms.values())
    ridge = peak / memory
    spread = [p["intensity"] for p in arms.values()]
    x = Scale(min([*spread, ridge]) / 4, max([*spread, ridge]) * 4, _LEFT, _RIGHT, log=True)
    lowest = min([*(p["flops_s"] for p in arms.values()), memory * x.low])
    y = Scale(lowest / 2, peak * 2, _BOTTOM, _TOP, log=True)
    svg = Svg(WIDTH, HEIGHT, "Roofline: what the machine can do, and what each arm did")
    for tick in x.ticks(5):
        svg.line((x(tick), _TOP), (x(tick), _BOTTOM), "grid")
        svg.text((x(tick), _BOTTOM + 16), f"{tick:g}", "tick", "middle")
    for tick in y.ticks(4):
        svg.line((_LEFT, y(tick)), (_RIGHT, y(tick)), "grid")
        svg.text((_LEFT - 6, y(tick) + 4), f"{tick / 1e9:g}", "tick", "end")
    svg.path([(x(x.low), y(memory * x.low)), (x(ridge), y(peak)), (x(x.high), y(peak))], "thick one")
    svg.text((_LEFT, 11), "GFLOP/s", "axis")
    svg.text(((_LEFT + _RIGHT) / 2, HEIGHT - 8), "operations a byte (log)", "axis", "middle")
    svg.text((x(ridge) + 6, y(peak) - 6), "arithmetic roof", "tick")
    svg.text((x(x.low) + 8, y(memory * x.low) - 8), "memory roof", "tick")
    for arm, placed in arms.items():
        _point(svg, x, y, arm, placed)
    return svg.render()


def _point(svg: Svg, x: Scale, y: Scale, arm: str, placed: Mapping[str, Any]) -> None:
    at = (x(placed["intensity"]), y(placed["flops_s"]))
    title = f"{arm}: {placed['flops_s'] / 1e9:.1f} GFLOP/s at {placed['intensity']:.1f} operations a byte"
    svg.circle(at, 5.0, f"dot {arm}", title)
    svg.text((at[0] + 9, at[1] + 4), arm, "label")
