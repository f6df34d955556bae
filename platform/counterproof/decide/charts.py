"""The report's pictures, each a function from recorded numbers to one inline SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterproof.decide.svg import Scale, Svg, step_path
from counterproof.decide.words import metric_words, number, ratio_words

WIDTH = 860.0


@dataclass(frozen=True)
class ForestRow:
    """One metric's ratio with interval, noise floor (fraction), margin as a ratio (None: no margin)."""

    label: str
    ratio: float | None
    low: float | None
    high: float | None
    floor: float | None
    margin: float | None
    css: str


def forest(rows: Sequence[ForestRow]) -> str:
    """Ratios to the baseline on a log axis: point and 95 % interval, noise band, guardrail margin."""
    row_height, top = 30.0, 26.0
    height = top + row_height * len(rows) + 34
    svg = Svg(WIDTH, height, "Ratios to the baseline with intervals")
    shown = [v for r in rows for v in (r.ratio, r.low, r.high, r.margin) if v is not None and v > 0]
    low, high = min([*shown, 0.9]), max([*shown, 1.1])
    pad = (high / low) ** 0.04
    x = Scale(low / pad, high * pad, 218, 640, log=True)
    bottom = top + row_height * len(rows)
    for tick in x.ticks(6):
        svg.line((x(tick), top), (x(tick), bottom), "grid")
        svg.text((x(tick), bottom + 16), f"{tick:g}", "tick", "middle")
    svg.line((x(1), top - 6), (x(1), bottom), "one")
    svg.text((x(1), top - 11), "equal", "tick", "middle")
    svg.text(((x.start + x.end) / 2, bottom + 31), "ratio to the baseline (log)", "axis", "middle")
    for i, row in enumerate(rows):
        _forest_row(svg, x, row, top + row_height * (i + 0.5), row_height)
    return svg.render()


def _forest_row(svg: Svg, x: Scale, row: ForestRow, y: float, height: float) -> None:
    svg.text((206, y + 4), row.label, "label", "end")
    if row.floor is not None:
        a, b = x(1 / (1 + row.floor)), x(1 + row.floor)
        svg.rect(a, y - height * 0.38, b - a, height * 0.76, "noise", f"noise floor {100 * row.floor:.2f} %")
    if row.margin is not None:
        svg.line((x(row.margin), y - height * 0.4), (x(row.margin), y + height * 0.4), "margin")
    if row.ratio is None:
        svg.text((656, y + 4), "not measured", "muted")
        return
    if row.low is not None and row.high is not None:
        svg.line((x(row.low), y), (x(row.high), y), f"whisker {row.css}")
    svg.circle((x(row.ratio), y), 4.5, f"dot {row.css}", row.label)
    svg.text((656, y + 4), ratio_words(row.ratio, row.low, row.high), "value")


@dataclass(frozen=True)
class Curve:
    """One arm's samples: per block and, pooled, all of them. +inf (failed) keeps the curve below 1."""

    arm: str
    css: str
    blocks: Sequence[Sequence[float]]


def ecdf(curves: Sequence[Curve], title: str, width: float = 420.0) -> str:
    """Distribution of a latency on a log axis: one thin line per block, one thick line per arm."""
    height = 250.0
    svg = Svg(width, height, f"Distribution of {title}")
    finite = [v for c in curves for block in c.blocks for v in block if math.isfinite(v) and v > 0]
    svg.text((46, 16), title, "label")
    if not finite:
        svg.text((46, 60), "no samples", "muted")
        return svg.render()
    x = Scale(min(finite) * 0.97, max(finite) * 1.03, 46, width - 12, log=True)
    y = Scale(0, 1, height - 42, 28)
    for share in (0, 0.25, 0.5, 0.75, 1):
        svg.line((x.start, y(share)), (x.end, y(share)), "grid")
        svg.text((x.start - 6, y(share) + 4), f"{100 * share:.0f} %", "tick", "end")
    for tick in x.ticks(5):
        svg.text((x(tick), height - 26), f"{tick:g}", "tick", "middle")
    svg.text(((x.start + x.end) / 2, height - 8), "ms (log)", "axis", "middle")
    for curve in curves:
        for block in curve.blocks:
            kept = sorted(v for v in block if math.isfinite(v))
            svg.path(step_path(kept, x, y, len(block)), f"thin {curve.css}")
    for curve in curves:
        pooled = [v for block in curve.blocks for v in block]
        kept = sorted(v for v in pooled if math.isfinite(v))
        svg.path(step_path(kept, x, y, len(pooled)), f"thick {curve.css}")
    return svg.render()


def block_ratios(effects: Mapping[str, Mapping[str, Any]], metric: str, statistic: str) -> str:
    """Every block's ratio to its own baseline, arm by arm: the raw points behind the interval."""
    width, height = 420.0, 250.0
    name = metric_words(metric, statistic)
    svg = Svg(width, height, f"Ratio per block of {name}")
    svg.text((46, 16), "each block's ratio to its own baseline", "label")
    values = {arm: [None if d is None else math.exp(d) for d in e["d"]] for arm, e in effects.items()}
    present = [v for series in values.values() for v in series if v is not None]
    if not present:
        svg.text((46, 60), "no values", "muted")
        return svg.render()
    low, high = min([*present, 0.95]), max([*present, 1.05])
    y = Scale(low / 1.03, high * 1.03, height - 42, 28, log=True)
    blocks = max(len(series) for series in values.values())
    x = Scale(0, max(blocks - 1, 1), 70, width - 30)
    for tick in y.ticks(5):
        svg.line((46, y(tick)), (width - 12, y(tick)), "grid")
        svg.text((40, y(tick) + 4), f"{tick:g}", "tick", "end")
    svg.line((46, y(1)), (width - 12, y(1)), "one")
    for arm, series in values.items():
        points = [(x(i), y(v)) for i, v in enumerate(series) if v is not None]
        svg.path(points, f"thin {arm}")
        for i, v in enumerate(series):
            if v is not None:
                svg.circle((x(i), y(v)), 4, f"dot {arm}", f"{arm}, block {i}: {v:.4f}")
    for i in range(blocks):
        svg.text((x(i), height - 26), str(i), "tick", "middle")
    svg.text((width / 2, height - 8), "block", "axis", "middle")
    return svg.render()


def waterfall(stages: Mapping[str, Any]) -> str:
    """From the baseline's mean end-to-end latency to the candidate's, one bar per stage, and the residual."""
    total = stages.get("total")
    if not stages["waterfall"] or not total or total["baseline_ms"] is None:
        return ""
    bars = [b for b in stages["waterfall"] if b["delta_ms"] is not None]
    rows = len(bars) + 3
    row_height, top = 27.0, 10.0
    svg = Svg(WIDTH, top + rows * row_height + 30, "Stage waterfall from baseline to candidate")
    bottom = top + rows * row_height
    reach = _reach(total, bars)
    x = Scale(0, reach * 1.02, 218, 640)
    for tick in x.ticks(6):
        svg.line((x(tick), top), (x(tick), bottom), "grid")
        svg.text((x(tick), bottom + 18), f"{tick:g}", "tick", "middle")
    svg.text((x.end + 16, bottom + 18), "ms per request", "axis")
    _bar(
        svg,
        x,
        top,
        row_height,
        "baseline",
        0.0,
        total["baseline_ms"],
        "fill baseline",
        number(total["baseline_ms"], "ms"),
    )
    at = float(total["baseline_ms"])
    for i, bar in enumerate(bars):
        at = _delta(
            svg, x, top + row_height * (i + 1), row_height, f"{bar['stage']} / {bar['phase']}", at, bar, ""
        )
    rest = stages["residual"]
    css = "" if stages["resolved"] else "unresolved"
    _delta(
        svg,
        x,
        top + row_height * (rows - 2),
        row_height,
        "residual (not traced)",
        at,
        rest,
        css or "residual",
    )
    _bar(
        svg,
        x,
        top + row_height * (rows - 1),
        row_height,
        "candidate",
        0.0,
        total["candidate_ms"],
        "fill candidate",
        number(total["candidate_ms"], "ms"),
    )
    return svg.render()


def _reach(total: Mapping[str, Any], bars: Sequence[Mapping[str, Any]]) -> float:
    at = reach = float(total["baseline_ms"])
    for bar in bars:
        at += bar["delta_ms"]
        reach = max(reach, at)
    return max(reach, float(total["candidate_ms"]))


def _bar(
    svg: Svg, x: Scale, y: float, height: float, label: str, a: float, b: float, css: str, value: str
) -> None:
    left, right = sorted((x(a), x(b)))
    svg.text((206, y + height * 0.62), label, "label", "end")
    svg.rect(left, y + 4, max(right - left, 1.0), height - 8, css, f"{label}: {value}")
    svg.text((656, y + height * 0.62), value, "value")


def _delta(
    svg: Svg, x: Scale, y: float, height: float, label: str, at: float, bar: Mapping[str, Any], css: str
) -> float:
    delta = float(bar["delta_ms"])
    text = f"{delta:+.2f} ms"
    if bar["ci_low"] is not None:
        text += f" [{bar['ci_low']:+.2f}, {bar['ci_high']:+.2f}]"
    even = bar["ci_low"] is None or bar["ci_low"] <= 0 <= bar["ci_high"]
    kind = css or ("even" if even else "better" if delta < 0 else "worse")
    _bar(svg, x, y, height, label, at, at + delta, f"fill {kind}", text)
    if bar["ci_low"] is not None:
        middle = y + height / 2
        svg.line((x(at + bar["ci_low"]), middle), (x(at + bar["ci_high"]), middle), "error")
    return at + delta


def memory_timeline(memory: Mapping[str, Any], key: str, title: str, width: float = 420.0) -> str:
    """One memory curve (`rss_bytes` or `kv_bytes`) of each arm over the time of one run; a value holds until the
    next sample."""
    height = 220.0
    svg = Svg(width, height, title)
    svg.text((64, 16), title, "label")
    curves = {arm: curve[key] for arm, curve in memory["timeline"].items() if curve.get(key)}
    points = [p for curve in curves.values() for p in curve]
    if not points:
        svg.text((64, 60), "not measured", "muted")
        return svg.render()
    size, unit = _binary_unit(max(p[1] for p in points))
    x = Scale(min(0.0, min(p[0] for p in points)), max(p[0] for p in points), 64, width - 12)
    y = Scale(0, max(max(p[1] for p in points) / size, 1.0) * 1.08, height - 42, 28)
    for value in y.ticks(4):
        svg.line((x.start, y(value)), (x.end, y(value)), "grid")
        svg.text((x.start - 6, y(value) + 4), f"{value:g} {unit}", "tick", "end")
    for tick in x.ticks(5):
        svg.text((x(tick), height - 26), f"{tick:g}", "tick", "middle")
    svg.text(((x.start + x.end) / 2, height - 8), "seconds since the first request", "axis", "middle")
    for arm, curve in curves.items():
        svg.path(_steps([(x(t), y(v / size)) for t, v in curve]), f"thick {arm}")
    return svg.render()


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    path: list[tuple[float, float]] = []
    for point in points:
        if path:
            path.append((point[0], path[-1][1]))
        path.append(point)
    return path


def _binary_unit(value: float) -> tuple[float, str]:
    units = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
    return next(((float(size), unit) for size, unit in units if value >= size), (1.0, "B"))
