"""From typed rows to the data frames that the charts draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from counterproof_dashboard import charts, findings, marks
from counterproof_dashboard.data import Study
from counterproof_dashboard.findings import GUARDRAIL, PRIMARY, REPORTED, Effect
from counterproof_dashboard.text import (
    NOT_RECORDED,
    interval,
    milliseconds,
    number,
    percent,
    quantity,
    ratio,
    visible,
)


def forest_frame(studies: Sequence[Study], *, registered: bool = True) -> pd.DataFrame:
    """FOREST_COLUMNS for one study, or for several with the study's name on every row, same metrics together.

    `registered`: the primary metric and the guardrails; otherwise all others that have a ratio.
    """
    lines: list[dict[str, object]] = []
    several = len(studies) > 1
    keyed = [(study, effect) for study in studies for effect in findings.effects(study)]
    if registered:
        keyed = [(study, effect) for study, effect in keyed if effect.role != REPORTED]
    else:
        keyed = [(study, effect) for study, effect in keyed if effect.role == REPORTED and effect.ratio]
    names = list(
        dict.fromkeys((effect.role != PRIMARY, effect.role != GUARDRAIL, effect.name) for _, effect in keyed)
    )
    for place in sorted(names, key=lambda name: name[:2]):
        for study, effect in keyed:
            if effect.name == place[2]:
                lines.append(_forest_row(effect, f"{study.name}{marks.label(study)}" if several else ""))
    return pd.DataFrame(lines, columns=list(charts.FOREST_COLUMNS))


def _forest_row(effect: Effect, study: str) -> dict[str, object]:
    noise, margin = effect.noise_band or (None, None), effect.margin_band or (None, None)
    role = f" ({effect.role})" if effect.role in {PRIMARY, GUARDRAIL} else ""
    first = visible(f"{study} · {effect.name}" if study else f"{effect.name}{role}")
    measured = effect.ratio is not None
    low, high = effect.ci_low, effect.ci_high
    numbers = f"{ratio(effect.ratio)}  ({interval(low, high)})" if measured else moved(effect)
    return {
        "label": f"{first}\n{numbers}",
        "ratio": effect.ratio,
        # Without an interval the line has no length, and the label says that none was recorded.
        "ci_low": low if low is not None else effect.ratio,
        "ci_high": high if high is not None else effect.ratio,
        "noise_low": noise[0] if measured else None,
        "noise_high": noise[1] if measured else None,
        "margin_low": margin[0] if measured else None,
        "margin_high": margin[1] if measured else None,
        "verdict": effect.verdict or "not measured",
        "note": visible(_note(effect)),
    }


def _note(effect: Effect) -> str:
    if effect.ratio is None and effect.difference is not None:
        return "a value is 0, so there is no ratio: the change stands at the left"
    return effect.reason or ("" if effect.ratio is not None else "no ratio is recorded")


def moved(effect: Effect) -> str:
    """The change in the metric's own unit, for values that have no ratio."""
    if effect.difference is None:
        return NOT_RECORDED
    if effect.difference == 0:
        return "no change"
    sign = "−" if effect.difference < 0 else "+"
    return f"{sign}{quantity(abs(effect.difference), effect.unit)}"


def metric_table(study: Study) -> pd.DataFrame:
    """Every compared metric in words, with both values, the ratio and what limits it."""
    lines = [
        {
            "metric": visible(effect.name),
            "role": effect.role,
            "baseline": quantity(effect.baseline, effect.unit),
            "candidate": quantity(effect.value, effect.unit),
            "change": moved(effect),
            "ratio": ratio(effect.ratio),
            "interval": interval(effect.ci_low, effect.ci_high),
            "floor": percent(effect.floor),
            "mde": percent(effect.mde)
            if effect.mde is not None
            else visible(effect.mde_words or NOT_RECORDED),
            "verdict": visible(effect.verdict or NOT_RECORDED),
            "why": visible(effect.reason),
        }
        for effect in findings.effects(study)
    ]
    return pd.DataFrame(lines)


def cost_table(study: Study) -> pd.DataFrame:
    """Stages down, resources across; every cell a value with its interval, or why there is none."""
    cells = findings.rows(study.comparison.get("cost"))
    stages = list(dict.fromkeys(findings.text(cell.get("stage")) for cell in cells))
    resources = list(dict.fromkeys(findings.text(cell.get("resource")) for cell in cells))
    found = {
        (findings.text(cell.get("stage")), findings.text(cell.get("resource"))): _cell(cell) for cell in cells
    }
    lines = [
        {"Stage": visible(stage), **{heading(r): found.get((stage, r), NOT_RECORDED) for r in resources}}
        for stage in stages
    ]
    return pd.DataFrame(lines)


def heading(resource: str) -> str:
    """A resource of the matrix as a column's heading."""
    return visible(resource.replace("_", " ").capitalize())


def _cell(cell: dict[str, Any]) -> str:
    unit = findings.text(cell.get("unit"))
    before, after = number(cell.get("baseline")), number(cell.get("candidate"))
    if cell.get("status") != "measured" or before is None or after is None:
        return "not measured"
    both = f"{quantity(before, unit)} → {quantity(after, unit)}"
    found = number(cell.get("ratio"))
    return f"{both} ({ratio(found)})" if found is not None else both


def waterfall_frame(study: Study) -> pd.DataFrame:
    """WATERFALL_COLUMNS: a floating bar for every stage and phase, then the residual and the total."""
    stages = study.comparison.get("stages")
    lines: list[dict[str, object]] = []
    end = 0.0
    for row in findings.rows(findings.get(stages, "waterfall")):
        delta = number(row.get("delta_ms"))
        name = f"{findings.text(row.get('stage'))} · {findings.text(row.get('phase'))}".strip(" ·")
        if delta is None:
            continue
        kind = "faster" if delta < 0 else "slower"
        lines.append(_bar(name, end, delta, kind, _whiskers(row)))
        end += delta
    residual, total = number(findings.get(stages, "residual_ms")), number(findings.get(stages, "total_ms"))
    if residual is not None:
        lines.append(
            _bar("residual (outside the stages)", end, residual, "residual", _whiskers(stages, "residual"))
        )
    if total is not None:
        lines.append(_bar("all together", 0.0, total, "total", _whiskers(stages, "total")))
    return pd.DataFrame(lines, columns=list(charts.WATERFALL_COLUMNS))


def _whiskers(data: object, *path: str) -> tuple[float, float]:
    low, high = number(findings.get(data, *path, "ci_low")), number(findings.get(data, *path, "ci_high"))
    return (low, high) if low is not None and high is not None else (math.nan, math.nan)


def _bar(
    name: str, start: float, delta: float, kind: str, whiskers: tuple[float, float] = (math.nan, math.nan)
) -> dict[str, object]:
    shown = f"{'−' if delta < 0 else '+'}{milliseconds(abs(delta))}" if abs(delta) >= 0.0005 else "0 ms"
    return {
        "label": f"{visible(name)}\n{shown}",
        "start": start,
        "end": start + delta,
        "delta": delta,
        "low": start + whiskers[0],
        "high": start + whiskers[1],
        "kind": kind,
        "shown": shown,
    }


def block_frames(study: Study, effect: Effect) -> tuple[pd.DataFrame, pd.DataFrame]:
    """BLOCK_COLUMNS and EFFECT_COLUMNS of one metric for the candidate and both controls."""
    dots: list[dict[str, object]] = []
    means: list[dict[str, object]] = []
    for arm in ("candidate", "again", "slowed"):
        pairs = findings.block_ratios(study, arm, effect.metric, effect.statistic)
        dots += [{"arm": arm, "block": f"block {block}", "ratio": value} for block, value in pairs]
        for found in findings.effects(study, arm):
            if (found.metric, found.statistic) == (
                effect.metric,
                effect.statistic,
            ) and found.ratio is not None:
                low = found.ci_low if found.ci_low is not None else found.ratio
                high = found.ci_high if found.ci_high is not None else found.ratio
                means.append({"arm": arm, "ratio": found.ratio, "ci_low": low, "ci_high": high})
    return (
        pd.DataFrame(dots, columns=list(charts.BLOCK_COLUMNS)),
        pd.DataFrame(means, columns=list(charts.EFFECT_COLUMNS)),
    )
