"""Which pictures a report holds, drawn from a study's comparison and its sealed samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterproof.decide import charts
from counterproof.decide.charts import Curve, ForestRow
from counterproof.decide.roofline_chart import roofline
from counterproof.decide.words import metric_words
from counterproof.measure.bottleneck import of_comparison as bottleneck_of
from counterproof.measure.load import StudyData
from counterproof.measure.metrics import run_samples

# Metrics worth a line in the forest although nobody registered them.
ALSO = ("e2e_ms", "ttft_ms", "tpot_ms", "itl_ms", "throughput_tok_s", "startup_ms", "peak_rss_bytes")
LATENCIES = ("tpot_ms", "ttft_ms", "e2e_ms")


def draw(study: StudyData, comparison: Mapping[str, Any]) -> dict[str, Any]:
    """SVG by name; a chart whose data do not exist is an empty string."""
    plan = study.plan
    primary = plan["primary"]
    key = next(
        (
            k
            for k, e in comparison["metrics"].items()
            if (e["metric"], e["statistic"]) == (primary["metric"], primary["statistic"])
        ),
        "",
    )
    effects = comparison["metrics"].get(key, {}).get("effects", {})
    wanted = [primary["metric"], *LATENCIES]
    latencies = [m for m in dict.fromkeys(wanted) if m in LATENCIES or m == "itl_ms"]
    return {
        "forest": charts.forest(forest_rows(plan, comparison)),
        "ecdf": [charts.ecdf(_curves(study, metric), metric_words(metric, "total")) for metric in latencies],
        "blocks": charts.block_ratios(effects, primary["metric"], primary["statistic"]),
        "waterfall": charts.waterfall(comparison["stages"]),
        "roofline": roofline(bottleneck_of(comparison)),
        "memory": [
            charts.memory_timeline(comparison["memory"], "rss_bytes", "resident memory of the process"),
            charts.memory_timeline(comparison["memory"], "kv_bytes", "KV cache in use"),
        ],
    }


def forest_rows(plan: Mapping[str, Any], comparison: Mapping[str, Any]) -> list[ForestRow]:
    """Primary first, then the guardrails, then the others; of the controls `again` for the primary metric."""
    margins = {(g["metric"], g["statistic"]): g for g in plan.get("guardrails", [])}
    order = [(plan["primary"]["metric"], plan["primary"]["statistic"]), *margins]
    entries = {(e["metric"], e["statistic"]): e for k, e in comparison["metrics"].items()}
    order += [
        pair
        for key, e in comparison["metrics"].items()
        if (pair := (e["metric"], e["statistic"])) and key in ALSO
    ]
    rows = []
    for pair in dict.fromkeys(order):
        entry = entries.get(pair)
        if entry is None or entry["effects"].get("candidate", {}).get("ratio") is None:
            continue
        rail = margins.get(pair)
        rows.append(_row(entry, "candidate", metric_words(*pair), _margin(rail)))
    primary = entries.get(order[0])
    if primary is not None:
        for arm in ("again", "slowed"):
            if arm in primary["effects"]:
                rows.append(_row(primary, arm, f"{arm} (control)", None))
    return rows


def _row(entry: Mapping[str, Any], arm: str, label: str, margin: float | None) -> ForestRow:
    effect = entry["effects"][arm]
    low, high = effect["ci_low"], effect["ci_high"]
    return ForestRow(label, effect["ratio"], low, high, entry["noise_floor"], margin, arm)


def _margin(rail: Mapping[str, Any] | None) -> float | None:
    if rail is None or rail["kind"] == "exact":
        return None
    return 1 / (1 + rail["margin"]) if rail["better"] == "higher" else 1 + float(rail["margin"])


def _curves(study: StudyData, metric: str) -> list[Curve]:
    arms = [arm for arm in ("slowed", "again", "baseline", "candidate") if arm in study.arms]
    return [Curve(arm, arm, [run_samples(run, metric).tolist() for run in study.of(arm)]) for arm in arms]
