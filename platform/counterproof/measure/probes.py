"""Could the result be overturned? Judging what the probe runs recorded, each check from facts to a verdict.

A probe run is one short run, so that only large contradictions refute: a factor of 1.25 is what one run of a shared
machine may be off by. What is smaller than that is told with its numbers and does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from counterproof.measure.check import Check
from counterproof.measure.load import RunData, StudyData
from counterproof.measure.metrics import METRICS, QUANTILES, run_samples, run_value

TOLERANCE = math.log(1.25)
HIDDEN = 0.5
SABOTAGE = "sabotage"
_NOT_APPLICABLE = {"not_applicable": True}
CACHES = ("prefix_cache.enabled", "context_cache.enabled")


def check_probes(study: StudyData, primary: Mapping[str, Any] | None) -> list[Check]:
    """The checks of the probe runs; none for a study that was registered without them.

    primary  the comparison's entry of the primary metric
    """
    if not study.plan.get("probes"):
        return []
    missing = [arm for arm in study.plan["probes"]["arms"] if arm not in study.probes]
    if missing:
        names = ("duplicate_prompts", "held_out_seed", "sabotage")
        return [Check(name, None, f"no sealed probe of {' and '.join(missing)}") for name in names]
    gain = main_gain(study.plan, primary)
    sabotaged = judge_sabotage(gain, probe_gain(study, SABOTAGE))
    if SABOTAGE not in study.probes:
        detail = "there is no feature of the engine that could be switched off under the hood"
        sabotaged = Check(SABOTAGE, None, detail, dict(_NOT_APPLICABLE))
    held_out = judge_held_out(gain, probe_gain(study, "candidate"))
    return [check_duplicates(study), held_out, sabotaged]


def check_duplicates(study: StudyData) -> Check:
    """A prompt that came before is answered by the same work as one that did not, unless a cache is declared."""
    problems, facts = [], {}
    for arm, run in study.probes.items():
        found = judge_duplicates(run.events, declared=any(run.effective.get(path) is True for path in CACHES))
        facts[arm] = found.facts
        problems += [f"{run.name}: {found.detail}"] if found.passed is False else []
        if found.passed is None:
            return Check("duplicate_prompts", None, f"{run.name}: {found.detail}", {"arms": facts})
    if problems:
        return Check("duplicate_prompts", False, "; ".join(problems), {"arms": facts})
    ratios = [f["ttft_ratio"] for f in facts.values() if f.get("ttft_ratio") is not None]
    listed = ", ".join(f"{ratio:.2f}" for ratio in ratios) or "not measured"
    detail = f"the second answer to a prompt took as much work as the first (TTFT ratios {listed})"
    return Check("duplicate_prompts", True, detail, {"arms": facts})


def judge_duplicates(events: Sequence[Mapping[str, Any]], *, declared: bool) -> Check:
    """One arm's pairs. `declared`: a cache of prompts is configured, so that a hit is no secret."""
    pairs = [event for event in events if event.get("kind") == "duplicate_prompt"]
    if not pairs or any(pair["failed"] for pair in pairs):
        return Check("duplicate_prompts", None, "no prompt was answered twice")
    ratios = [
        pair["ttft_second_ms"] / pair["ttft_first_ms"]
        for pair in pairs
        if pair["ttft_first_ms"] and pair["ttft_second_ms"] is not None
    ]
    saved = [
        pair
        for pair in pairs
        if _less(pair["computed_second"], pair["computed_first"])
        or _less(pair["cached_first"], pair["cached_second"])
    ]
    facts = {
        "pairs": len(pairs),
        "ttft_ratio": float(np.median(ratios)) if ratios else None,
        "hits": len(saved),
        "declared": declared,
    }
    if not all(pair["equal"] for pair in pairs):
        return Check("duplicate_prompts", False, "the same prompt was answered in two ways", facts)
    if declared:
        return Check("duplicate_prompts", True, f"a declared cache hit {len(saved)} of {len(pairs)}", facts)
    if saved:
        detail = (
            f"a cache that nothing declares: {len(saved)} of {len(pairs)} second answers were computed less"
        )
        return Check("duplicate_prompts", False, detail, facts)
    if len(ratios) == len(pairs) and max(ratios) < HIDDEN:
        detail = f"a hidden cache: every second answer began in less than half the time ({max(ratios):.2f} at most)"
        return Check("duplicate_prompts", False, detail, facts)
    return Check("duplicate_prompts", True, "no hit", facts)


def main_gain(plan: Mapping[str, Any], primary: Mapping[str, Any] | None) -> float | None:
    """The candidate's gain of the primary metric as a log-ratio, positive for better; None unless its interval
    excludes no change."""
    effect = ((primary or {}).get("effects") or {}).get("candidate") or {}
    low, high, ratio = (effect.get(name) for name in ("ci_low", "ci_high", "ratio"))
    if ratio is None or low is None or high is None or low <= 1.0 <= high:
        return None
    return _sign(plan) * math.log(ratio)


def probe_gain(study: StudyData, arm: str) -> float | None:
    """The same of one probe run over the baseline's; requests are paired where a request has the metric."""
    if arm not in study.probes:
        return None
    plan = study.plan
    metric, statistic = str(plan["primary"]["metric"]), str(plan["primary"]["statistic"])
    base, other = study.probes["baseline"], study.probes[arm]
    if metric in METRICS and METRICS[metric].statistics[:4] == QUANTILES:
        ratio = _paired(run_samples(base, metric), run_samples(other, metric))
    else:
        values = [run_value(run, metric, statistic).value for run in (base, other)]
        ratio = _log_ratio(*values)
    return None if ratio is None else _sign(plan) * ratio


def judge_held_out(gain: float | None, held_out: float | None) -> Check:
    """Requests of another seed must not contradict the gain: at least half of it, less what one run may be off."""
    name, facts = "held_out_seed", {"gain_log": gain, "held_out_log": held_out}
    if gain is None or gain <= 0:
        return Check(name, None, "there is no gain to contradict", {**facts, **_NOT_APPLICABLE})
    if held_out is None:
        return Check(name, None, "the held-out run has no value of the primary metric", facts)
    least = gain / 2 - TOLERANCE
    words = f"{_percent(held_out)} with another seed, {_percent(gain)} in the blocks"
    if held_out < least:
        return Check(name, False, f"the gain does not hold for other requests: {words}", facts)
    return Check(name, True, f"not contradicted: {words}", facts)


def judge_sabotage(gain: float | None, left: float | None) -> Check:
    """With the feature off under the hood, the gain must be gone."""
    name, facts = "sabotage", {"gain_log": gain, "left_log": left}
    if gain is None or gain <= 0:
        return Check(name, None, "there is no gain that could vanish", {**facts, **_NOT_APPLICABLE})
    if left is None:
        return Check(name, None, "the sabotaged run has no value of the primary metric", facts)
    words = f"{_percent(left)} is left of {_percent(gain)} when the feature is off under the hood"
    if left > gain / 2 + TOLERANCE / 2 and left > TOLERANCE:
        return Check(name, False, f"the gain does not come from the feature: {words}", facts)
    if gain / 2 <= TOLERANCE / 2:
        detail = f"too small for one run to tell: {words}"
        return Check(name, None, detail, {**facts, **_NOT_APPLICABLE})
    return Check(name, True, f"the gain vanishes: {words}", facts)


def _sign(plan: Mapping[str, Any]) -> float:
    return 1.0 if plan["primary"]["better"] == "higher" else -1.0


def _paired(base: Any, other: Any) -> float | None:
    """Median over requests of log(other / base); token gaps, which are not one a request, by their means."""
    if base.size != other.size:
        return _log_ratio(_mean(base), _mean(other))
    good = np.isfinite(base) & np.isfinite(other) & (base > 0) & (other > 0)
    return float(np.median(np.log(other[good] / base[good]))) if good.sum() >= 3 else None


def _mean(sample: Any) -> float | None:
    return float(sample.mean()) if sample.size and np.isfinite(sample).all() else None


def _log_ratio(base: float | None, other: float | None) -> float | None:
    return math.log(other / base) if base and other and base > 0 and other > 0 else None


def _less(left: Any, right: Any) -> bool:
    return left is not None and right is not None and left < right


def _percent(gain: float) -> str:
    """A log-ratio as the factor by which the metric improved, e.g. 1.25 times."""
    return f"{math.exp(gain):.2f} times better"


def end_tokens(study: StudyData) -> set[int] | None:
    """The tokens at which a text ends, as the baseline's probe recorded them; None where nothing did."""
    run: RunData | None = study.probes.get("baseline")
    found = next((e for e in (run.events if run else []) if e.get("kind") == "end_tokens"), None)
    return None if found is None or found["token_ids"] is None else {int(i) for i in found["token_ids"]}
