"""The guardrails of a decision as rows in words; a bound in the unit of what it bounds."""

from __future__ import annotations

from counterproof.measure.metrics import METRICS
from counterproof.measure.quality import QUALITY
from counterproof_dashboard import findings
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import NOT_RECORDED, interval, number, percent, quantity, ratio, visible
from counterproof_dashboard.words import metric_name

NOTHING = "–"
MARKS = {"PASS": "✓\u00a0PASS", "HARM": "✗\u00a0HARM", "UNPROVEN": "?\u00a0UNPROVEN"}


def rows(study: Study) -> list[dict[str, str]]:
    """One row a registered guardrail, text not escaped for Markdown."""
    return [_row(row) for row in findings.rows(study.decision.get("guardrails"))]


def _row(row: dict[str, object]) -> dict[str, str]:
    metric, status = findings.text(row.get("metric")), findings.text(row.get("status"))
    low, high, found = number(row.get("ci_low")), number(row.get("ci_high")), number(row.get("ratio"))
    # An exact guardrail counts; where it has no ratio there is nothing that could have been recorded.
    none = NOTHING if row.get("kind") == "exact" and found is None else NOT_RECORDED
    return {
        "Guardrail": metric_name(metric, findings.text(row.get("statistic"))),
        "Result": MARKS.get(status, status or NOT_RECORDED),
        "Measured": _measured(metric, row) or (ratio(found) if found is not None else none),
        "95 % interval": interval(low, high) if found is not None and metric not in QUALITY else none,
        "Bound": bound(metric, row),
        "Why": findings.text(row.get("reason")),
    }


def _measured(metric: str, row: dict[str, object]) -> str:
    value = number(row.get("value"))
    return in_unit(value, unit_of(metric)) if value is not None and metric in QUALITY else ""


def bound(metric: str, row: dict[str, object]) -> str:
    """How far it may get worse: an absolute limit in the metric's own unit, else a share of the baseline."""
    limit, margin = number(row.get("limit")), number(row.get("margin"))
    if metric in QUALITY:
        known = QUALITY[metric]
        if limit is None and margin is not None:
            limit = known.perfect - margin if known.better == "higher" else known.perfect + margin
        word = "at least" if known.better == "higher" else "at most"
        return NOT_RECORDED if limit is None else f"{word} {in_unit(limit, known.unit)}"
    if limit is not None:
        return f"at most {quantity(limit, unit_of(metric))}"
    if margin == 0:
        return "no change"
    return percent(margin)


def in_unit(value: float, unit: str) -> str:
    """A quality value as it is, with its unit: bounds of 0.01 nats and 1.01 must not be rounded away."""
    if unit == "fraction":
        return f"{100 * value:.6g} %"
    return f"{value:.6g} {'' if unit == 'ratio' else visible(unit)}".strip() + (
        "×" if unit == "ratio" else ""
    )


def unit_of(metric: str) -> str:
    """The unit that the harness gives a metric; empty for an unknown one."""
    if metric in QUALITY:
        return QUALITY[metric].unit
    return METRICS[metric].unit if metric in METRICS else ""


def quality_rows(study: Study) -> list[dict[str, str]]:
    """Every quality value of the comparison in its own unit, with what would be perfect and the registered bound."""
    found = study.comparison.get("quality")
    if not isinstance(found, dict):
        return []
    bounds = {
        findings.text(row.get("metric")): bound(findings.text(row.get("metric")), row)
        for row in findings.rows(study.decision.get("guardrails"))
    }
    lines = []
    for metric, known in QUALITY.items():
        value = number(findings.get(found, known.scope, known.field))
        lines.append(
            {
                "Quality": metric_name(metric),
                "Candidate": NOT_RECORDED if value is None else in_unit(value, known.unit),
                "Perfect": in_unit(known.perfect, known.unit),
                "Registered bound": bounds.get(metric, "none"),
            }
        )
    return lines
