"""The comparison of a study: every number recomputed from the sealed Parquet files, as comparison.json holds it."""

from __future__ import annotations

import math
from typing import Any

from counterproof.measure.abnormal import abnormal_table, check_abnormal
from counterproof.measure.bottleneck import judge_bottleneck
from counterproof.measure.cost import cost_matrix
from counterproof.measure.detectable import add_detectable, rule_of
from counterproof.measure.device_memory import METRICS as OF_DEVICE
from counterproof.measure.device_memory import on_device
from counterproof.measure.divergence import diverge
from counterproof.measure.equivalence import judge_equivalence
from counterproof.measure.flagcheck import find_differences
from counterproof.measure.limits import hard_limits
from counterproof.measure.load import StudyData
from counterproof.measure.memory import memory_facts
from counterproof.measure.metrics import METRICS
from counterproof.measure.noise import Gate, a_a_gate
from counterproof.measure.percentile import METHOD
from counterproof.measure.probes import check_probes
from counterproof.measure.quality import quality_of
from counterproof.measure.scope import scope_of
from counterproof.measure.setup import METRICS as OF_SETUP
from counterproof.measure.setup import has_setup
from counterproof.measure.stages import waterfall
from counterproof.measure.table import ALPHA, Family, metric_entry
from counterproof.measure.validity import check_validity, closed, is_valid
from counterproof.plan.reserve import EXTENDED

SCHEMA = "counterproof-comparison/1"


def compare(study: StudyData) -> dict[str, Any]:
    """The whole comparison over the complete blocks. Holds no non-finite number: NULL and a reason instead."""
    plan = study.plan
    equivalence = judge_equivalence(study)
    divergences = {
        arm: diverge(study.of("baseline"), study.of(arm), equivalence.threshold) for arm in study.arms[1:]
    }
    candidate = divergences.get("candidate")
    metrics = _metrics(study)
    primary = metrics.get(primary_key(plan))
    band = float(plan.get("aa_band", 0.05))
    gate = Gate(None, "the primary metric is not known") if primary is None else _gate(primary, band)
    differences = find_differences(study)
    checks = check_validity(study, gate, equivalence, divergences, differences)
    overturn = [*check_probes(study, primary), *check_abnormal(study, equivalence.threshold)]
    checks += [closed(study, check) for check in overturn]
    valid = is_valid(checks)
    quality = quality_of(study)
    _close_claims(metrics, plan, valid, study.final)
    return {
        "schema": SCHEMA,
        "study": plan["study"],
        "plan_sha256": study.verified.plan_sha256,
        "runs": _runs(study),
        "lost_attempts": _lost(study),
        "extensions": [
            {"blocks": event["blocks"], "reason": event["reason"]}
            for event in study.verified.journal
            if event["kind"] == EXTENDED
        ],
        "percentile_method": METHOD,
        "blocks": study.complete_blocks,
        "blocks_planned": study.planned_blocks,
        "final": study.final,
        "candidates_tried": plan.get("candidates_tried"),
        "stall_probability_bound": _stall_bound(len(study.complete_blocks)),
        "metrics": metrics,
        "stages": waterfall(study),
        "bottleneck": judge_bottleneck(study),
        "cost": cost_matrix(study, candidate),
        "memory": memory_facts(*_two(study), plan),
        "validity": [check.as_dict() for check in checks],
        "valid": valid,
        "equivalence": equivalence.facts(),
        **({} if quality is None else {"quality": quality}),
        "abnormal": abnormal_table(study),
        "failures": study.failures,
        "divergence": {arm: d.facts(equivalence.threshold) for arm, d in divergences.items()},
        "hard_limits": hard_limits(study, equivalence, candidate),
        "diffs": differences.facts(),
        "scope": scope_of(study),
    }


def primary_key(plan: dict[str, Any]) -> str:
    """Under which key `metrics` holds the plan's primary metric."""
    primary = plan["primary"]
    return metric_key(plan, str(primary["metric"]), str(primary["statistic"]))


def metric_key(plan: dict[str, Any], metric: str, statistic: str) -> str:
    """`metric` for its headline statistic (the primary's own, else the metric's first), else metric.statistic."""
    known = METRICS.get(metric)
    headline = known.statistics[0] if known else statistic
    if plan["primary"]["metric"] == metric:
        headline = str(plan["primary"]["statistic"])
    return metric if statistic == headline else f"{metric}.{statistic}"


def _metrics(study: StudyData) -> dict[str, Any]:
    plan = study.plan
    left_out = (*(() if has_setup(study) else OF_SETUP), *(() if on_device(study) else OF_DEVICE))
    wanted = [
        (name, s) for name, metric in METRICS.items() for s in metric.statistics if name not in left_out
    ]
    registered = [
        (str(g["metric"]), str(g["statistic"])) for g in (plan["primary"], *plan.get("guardrails", []))
    ]
    wanted += [pair for pair in registered if pair[0] in METRICS and pair not in wanted]
    family = Family.of(plan)
    entries = {metric_key(plan, name, s): metric_entry(study, name, s, family) for name, s in wanted}
    add_detectable(entries, primary_key(plan), rule_of(plan, ALPHA / family.size))
    exact = [
        (str(g["metric"]), str(g["statistic"])) for g in plan.get("guardrails", []) if g["kind"] == "exact"
    ]
    keys = {metric_key(plan, *pair) for pair in exact}
    family.adjust(entries, {metric_key(plan, *pair) for pair in registered} - keys, keys)
    return entries


def _gate(primary: dict[str, Any], band: float) -> Gate:
    found = primary["effects"].get("again")
    if found is None:
        return Gate(None, "the study has no 'again' arm")
    gate = a_a_gate(found["d"], band)
    if gate.passed is None and found["reason"]:
        return Gate(None, f"the primary metric has no A/A interval: {found['reason']}")
    return gate


def _close_claims(metrics: dict[str, Any], plan: dict[str, Any], valid: bool, final: bool) -> None:
    """No claim from invalid, unfinished, exploratory or calibration evidence, whatever the interval says."""
    closed = ""
    if plan.get("exploratory"):
        closed = "an exploratory study can never claim"
    elif plan.get("calibration"):
        closed = "a calibration study can never claim"
    elif not final:
        closed = "blocks are left; a claim needs all of them"
    elif not valid:
        closed = "the evidence is invalid"
    if not closed:
        return
    for entry in metrics.values():
        if entry["verdict"] in ("gain", "loss"):
            entry["reason"] = f"{closed} (the interval alone would say {entry['verdict']})"
            entry["verdict"] = "no claim"


def _runs(study: StudyData) -> list[dict[str, Any]]:
    counted = [study.runs[(b, arm)] for b in study.complete_blocks for arm in study.arms]
    runs = [*study.equivalence.values(), *counted, *study.probes.values()]
    return [{"run": run.name, "manifest_sha256": run.sealed.manifest_sha256} for run in runs]


def _lost(study: StudyData) -> list[dict[str, Any]]:
    kinds = ("run_lost", "run_failed", "run_refused")
    return [
        {"run": e.get("run"), "kind": e["kind"], "reason": e.get("reason")}
        for e in study.verified.journal
        if e["kind"] in kinds
    ]


def _stall_bound(blocks: int) -> float | None:
    """Upper 95 % bound on the probability that a block stalls, when none of n did: 1 - 0.05^(1/n)."""
    return None if blocks == 0 else 1.0 - math.pow(0.05, 1.0 / blocks)


def _two(study: StudyData) -> tuple[Any, Any]:
    return study.of("baseline"), study.of("candidate") if "candidate" in study.arms else []
