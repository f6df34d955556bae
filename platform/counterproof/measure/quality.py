"""Quality of a change that may move outputs: its distance from the baseline, held to registered bounds.

Recorded in the equivalence phase as events of kind `quality`, one a scope: `all` positions (the baseline's own
answers and held-out text), `held_out` alone, and every `request`. A margin is the largest distance from the perfect
value that is accepted: KL 0, agreement 1, perplexity ratio 1, logit difference 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from counterproof.measure.equivalence import BATCH
from counterproof.measure.load import RunData, StudyData

EVENT = "quality"
STATISTIC = "total"


@dataclass(frozen=True)
class QualityMetric:
    """Where the value stands in the facts, its perfect value, and which direction is better."""

    scope: str
    field: str
    perfect: float
    better: str
    unit: str


# Perplexity is taken over held-out text alone: a model finds its own answers likelier than any other does.
QUALITY: dict[str, QualityMetric] = {
    "quality_kl_mean": QualityMetric("all", "kl_mean", 0.0, "lower", "nats"),
    "quality_kl_p99": QualityMetric("all", "kl_p99", 0.0, "lower", "nats"),
    "quality_top1": QualityMetric("all", "top1_agreement", 1.0, "higher", "fraction"),
    "quality_max_dlogit": QualityMetric("all", "max_dlogit", 0.0, "lower", "logits"),
    "quality_ppl_ratio": QualityMetric("held_out", "perplexity_ratio", 1.0, "lower", "ratio"),
    "quality_batch_dlogit": QualityMetric("batching", "candidate", 0.0, "lower", "logits"),
}


def quality_of(study: StudyData) -> dict[str, Any] | None:
    """The `quality` part of the comparison; None for a study whose outputs must not move, or without the phase.

    `batching`: largest difference of a contender's logit between computing a request alone and among others.
    """
    if (study.plan.get("factor") or {}).get("lossless") is not False or "candidate" not in study.arms:
        return None
    baseline, candidate = study.equivalence.get("baseline"), study.equivalence.get("candidate")
    if baseline is None or candidate is None:
        return None
    found: dict[str, Any] = {"requests": [], "reason": ""}
    for event in candidate.events:
        if event.get("kind") != EVENT:
            continue
        facts = {key: value for key, value in event.items() if key not in ("time_ns", "kind", "scope")}
        if event.get("scope") == "request":
            found["requests"].append(facts)
        else:
            found[str(event.get("scope"))] = facts
    if "all" not in found:
        found["reason"] = "the target did not compare its arms' predictions"
    found["batching"] = {run.arm: _batching(run) for run in (baseline, candidate)}
    return found


def quality_value(quality: Mapping[str, Any] | None, metric: str) -> tuple[float | None, str]:
    """A quality metric's value, or None and why."""
    if not quality:
        return None, "no quality was recorded (study.equivalence_requests, factor.lossless: false)"
    known = QUALITY[metric]
    value = (quality.get(known.scope) or {}).get(known.field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None, str(quality.get("reason") or f"{known.field} was not recorded")
    return float(value), ""


def distance(metric: str, value: float) -> float:
    """How far a value lies on the bad side of the perfect one."""
    known = QUALITY[metric]
    away = known.perfect - value if known.better == "higher" else value - known.perfect
    return max(0.0, away)


def _batching(run: RunData) -> float | None:
    values = [event.get("batching") for event in run.events if event.get("kind") == BATCH]
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return max(numbers) if numbers and len(numbers) == len(values) else None
