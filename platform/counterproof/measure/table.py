"""One metric's entry in the comparison: per-block values, effects, noise floor, verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterproof.measure.effects import effect
from counterproof.measure.holm import holm
from counterproof.measure.latency import COLUMNS
from counterproof.measure.load import RunData, StudyData
from counterproof.measure.metrics import METRICS, run_samples, run_value, summarise
from counterproof.measure.noise import a_a_gate, floor_log
from counterproof.measure.percentile import PERCENTILES, order_interval

ALPHA = 0.05


@dataclass(frozen=True)
class Family:
    """The preregistered metrics that are judged by intervals; Holm's family."""

    size: int
    band: float

    @staticmethod
    def of(plan: dict[str, Any]) -> Family:
        sampled = {
            (g["metric"], g["statistic"]) for g in plan.get("guardrails", []) if g.get("kind") != "exact"
        }
        primary = plan["primary"]
        sampled.add((primary["metric"], primary["statistic"]))
        return Family(len(sampled), float(plan.get("aa_band", 0.05)))

    def adjust(self, entries: dict[str, Any], judged: set[str], exact: set[str]) -> None:
        """Holm over the keys that are `judged` by interval, then every entry's verdict.

        A metric under an `exact` guardrail is judged there; others are descriptive. Neither is ever a claim.
        """
        effects = {key: entries[key]["effects"].get("candidate") or {} for key in judged if key in entries}
        adjusted = holm({key: found.get("p_value") for key, found in effects.items()}, self.size)
        for key, entry in entries.items():
            entry["preregistered"] = key in judged or key in exact
            entry["judged"] = "interval" if key in judged else "exact" if key in exact else "described"
            entry["p_holm"] = adjusted.get(key)
            entry["verdict"], entry["reason"] = _verdict(entry)


def metric_entry(study: StudyData, metric: str, statistic: str, family: Family) -> dict[str, Any]:
    """The entry without its verdict, which needs the whole family."""
    spec = METRICS[metric]
    arms = {arm: _arm(study.of(arm), metric, statistic) for arm in study.arms}
    base = arms["baseline"]
    effects = {
        arm: effect(base["per_block"], value["per_block"], base["reason"] or value["reason"])
        for arm, value in arms.items()
        if arm != "baseline"
    }
    again = effects["again"]["d"]
    floor = floor_log(again)
    gate = a_a_gate(again, family.band)
    return {
        "metric": metric,
        "statistic": statistic,
        "unit": spec.unit,
        "better": spec.better,
        "arms": arms,
        "effects": effects,
        "noise_floor": None if floor is None else math.expm1(floor),
        "noise_floor_log": floor,
        "a_a": {"passed": gate.passed, "detail": gate.detail},
    }


def _arm(runs: list[RunData], metric: str, statistic: str) -> dict[str, Any]:
    values = [run_value(run, metric, statistic) for run in runs]
    reason = next(
        (f"{run.name}: {v.reason}" for run, v in zip(runs, values, strict=True) if v.value is None), ""
    )
    return {
        "per_block": [v.value for v in values],
        "n": [v.n for v in values],
        "outliers": _outliers([v.value for v in values]),
        "reason": reason,
        "pooled": _pooled(runs, metric, statistic),
    }


def _pooled(runs: list[RunData], metric: str, statistic: str) -> dict[str, Any] | None:
    """The percentile over all requests of all blocks, to describe (not to decide), for latency metrics."""
    if (
        statistic not in PERCENTILES
        or not (metric in COLUMNS or metric in ("itl_ms", "inter_chunk_ms"))
        or not runs
    ):
        return None
    sample = np.concatenate([run_samples(run, metric) for run in runs])
    found = summarise(sample, statistic)
    low, high = order_interval(sample, PERCENTILES[statistic])
    if found.value is None:
        low = high = None
    return {"value": found.value, "n": found.n, "reason": found.reason, "ci_low": low, "ci_high": high}


def _outliers(values: list[float | None]) -> list[int]:
    """Positions outside Tukey's fences (1.5 interquartile ranges): labelled, never dropped."""
    present = [v for v in values if v is not None]
    if len(present) < 4:
        return []
    low, high = np.quantile(present, [0.25, 0.75])
    reach = 1.5 * (high - low)
    return [i for i, v in enumerate(values) if v is not None and not (low - reach <= v <= high + reach)]


def _verdict(entry: dict[str, Any]) -> tuple[str, str]:
    found = entry["effects"].get("candidate")
    if found is None:
        return "not measured", "the study has no candidate"
    if found["ci_low"] is None:
        return "not measured", found["reason"]
    if entry["better"] == "equal":
        return "no claim", "a difference of this metric is no gain"
    if entry["judged"] == "exact":
        return "no claim", "judged by an exact count: see the guardrail"
    if entry["judged"] == "described":
        return "no claim", "not preregistered: the interval describes"
    if entry["a_a"]["passed"] is not True:
        return "no claim", f"A/A: {entry['a_a']['detail']}"
    floor = entry["noise_floor_log"]
    if floor is None:
        return "no claim", "there is no noise floor"
    if entry["p_holm"] is None or entry["p_holm"] >= ALPHA:
        return "no claim", "the interval does not exclude 0 (Holm over the preregistered metrics)"
    if abs(found["mean"]) <= floor:
        return "no claim", f"the effect does not exceed the noise floor of {100 * math.expm1(floor):.2f} %"
    lower = found["mean"] < 0
    good = lower == (entry["better"] == "lower")
    return ("gain" if good else "loss"), "the interval excludes 0 and the effect exceeds the noise floor"
