"""The decision report: report.html, one offline file without scripts, and report.md with the same content.

Both are views of plan, comparison, decision and the sealed samples; nothing is measured or decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from counterproof.decide import faults_words, pictures, words
from counterproof.decide.headline import headline
from counterproof.measure.bottleneck import of_comparison as bottleneck_of
from counterproof.measure.bottleneck import sentence
from counterproof.measure.compare import primary_key
from counterproof.measure.cost import RESOURCES, STAGES
from counterproof.measure.load import StudyData, load_study
from counterproof.measure.metrics import METRICS
from counterproof.record import atomic, canonical

HTML, MARKDOWN = "report.html", "report.md"
EXAMPLE_CHARACTERS = 280


@dataclass(frozen=True)
class Written:
    """Where the two reports are."""

    html: Path
    markdown: Path


def write(folder: Path) -> Written:
    """Render both reports of a compared and decided study. Raises EvidenceError if it is not what was recorded."""
    study = load_study(folder)
    comparison = canonical.read_json(study.verified.paths.comparison)
    decision = canonical.read_json(study.verified.paths.decision)
    html, markdown = render(study, comparison, decision)
    atomic.write_bytes(folder / HTML, html.encode())
    atomic.write_bytes(folder / MARKDOWN, markdown.encode())
    return Written(folder / HTML, folder / MARKDOWN)


def render(study: StudyData, comparison: Mapping[str, Any], decision: Mapping[str, Any]) -> tuple[str, str]:
    """The two texts. Everything that came from outside is escaped by the templates."""
    drawn = pictures.draw(study, comparison)
    data = {
        "plan": study.plan,
        "arms": study.arms,
        "metrics": _metrics(study.plan, comparison),
        "comparison": comparison,
        "decision": decision,
        "headline": headline(study.plan, comparison, decision),
        "charts": {name: _markup(value) for name, value in drawn.items()},
        "cost": _cost_rows(comparison),
        "stages": STAGES,
        "resources": RESOURCES,
        "examples": _examples(study),
        "environment": _environment(study),
        "factor": _factor(study.plan),
        "bottleneck": sentence(bottleneck_of(comparison)),
        "memory_price": memory_price(comparison),
        "outlying": _outlying(study.plan, comparison),
        "faults_reason": faults_words.faults_reason(study.plan.get("faults")),
    }
    return _template("report.html.j2", escape=True).render(data), _template(
        "report.md.j2", escape=False
    ).render(data)


def _markup(value: str | list[str]) -> Markup | list[Markup]:
    """The drawings are our own markup; their texts were escaped when they were drawn."""
    return [Markup(v) for v in value] if isinstance(value, list) else Markup(value)


def _template(name: str, *, escape: bool) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("counterproof.decide", "templates"),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": words.number,
        "change": words.change,
        "percent": words.percent,
        "bytes": words.byte_words,
        "plain": _plain,
        "sentence": _sentence,
        "cell": _markdown_cell,
        "known": words.known,
    }
    environment.globals |= {
        "metric_words": words.metric_words,
        "ratio_words": words.ratio_words,
        "check_words": words.check_words,
        "companion_words": words.companion_words,
        "detectable": words.detectable,
    }
    return environment.get_template(name)


def _plain(value: Any) -> str:
    """A recorded value as configuration files spell it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sentence(text: str) -> str:
    """Begins with a capital and ends in a full stop."""
    whole = text[:1].upper() + text[1:]
    return whole if whole.endswith(".") else f"{whole}."


def _metrics(plan: Mapping[str, Any], comparison: Mapping[str, Any]) -> dict[str, Any]:
    """The entries in the order of METRICS, the primary one first, under names that say the statistic."""
    order = list(METRICS)
    first = (plan["primary"]["metric"], plan["primary"]["statistic"])
    entries = [e for e in comparison["metrics"].values() if e["metric"] in METRICS]
    entries.sort(key=lambda e: ((e["metric"], e["statistic"]) != first, order.index(e["metric"])))
    return {f"{e['metric']} {e['statistic']}": e for e in entries}


def _markdown_cell(value: Any) -> str:
    """Text that can break neither a table's row nor its page: no line ends, bars, tags or back-ticks."""
    text = " ".join(_plain(value).split())
    for mark, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "'")):
        text = text.replace(mark, safe)
    return text


def _cost_rows(comparison: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    # A comparison of an earlier version has no cell of a resource that was added since.
    blank = {"status": "not measured", "reason": "not recorded"}
    rows: dict[str, dict[str, Any]] = {stage: dict.fromkeys(RESOURCES, blank) for stage in STAGES}
    for cell in comparison["cost"]:
        rows[cell["stage"]][cell["resource"]] = cell
    return rows


def _examples(study: StudyData) -> list[dict[str, str]]:
    """What the arms said to the first request of the first complete block, cut to a readable length."""
    if not study.complete_blocks:
        return []
    block = study.complete_blocks[0]
    shown = []
    for arm in study.arms:
        rows = study.runs[(block, arm)].outputs
        if rows:
            text = str(rows[0].get("text", ""))
            cut = text[:EXAMPLE_CHARACTERS] + (" ..." if len(text) > EXAMPLE_CHARACTERS else "")
            shown.append({"arm": arm, "prompt": str(rows[0].get("prompt", "")), "text": cut})
    return shown


def _environment(study: StudyData) -> dict[str, Any]:
    runs = study.of("baseline")
    return dict(sorted(runs[0].environment.get("id", {}).items())) if runs else {}


def _factor(plan: Mapping[str, Any]) -> str:
    factor = plan.get("factor")
    if not factor:
        return "no candidate: equal arms"
    return f"{factor['path']}: {_plain(factor['baseline'])} to {_plain(factor['candidate'])}"


def _outlying(plan: Mapping[str, Any], comparison: Mapping[str, Any]) -> list[str]:
    """Blocks whose primary value is an outlier of its arm, e.g. "slowed in block 3"."""
    entry = comparison["metrics"].get(primary_key(dict(plan)), {})
    blocks = comparison["blocks"]
    return [f"{arm} in block {blocks[i]}" for arm, v in entry.get("arms", {}).items() for i in v["outliers"]]


def memory_price(comparison: Mapping[str, Any]) -> str:
    """What the candidate holds at its peak against the baseline, e.g. "16.88 MiB less than the baseline"."""
    arms = comparison["memory"]["arms"]
    measured = [v for v in arms.get("candidate", {}).get("measured_kv_bytes", []) if v is not None]
    if not measured:
        return words.NONE
    before = [v for v in arms["baseline"]["measured_kv_bytes"] if v is not None]
    change = max(measured) - max(before, default=0)
    return f"{words.byte_words(abs(change))} {'less' if change < 0 else 'more'} than the baseline"
