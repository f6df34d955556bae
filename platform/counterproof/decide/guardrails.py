"""Guardrails: PASS only where it is proven that the price stays inside the margin, HARM only where the contrary is.

Everything else is UNPROVEN with a reason: missing, NaN, too few samples, one run, identical values. Three kinds:
exact (a count or an equality decides), rate and sampled (one-sided t bounds on the block log ratios decide). All
must pass for a promotion, an intersection-union test that needs no correction; HARM is corrected by Holm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from counterproof.decide.eprocess import fires
from counterproof.measure.compare import metric_key
from counterproof.measure.holm import holm
from counterproof.measure.interval import t_interval, t_p_value
from counterproof.measure.quality import QUALITY, distance, quality_value

PASS, HARM, UNPROVEN = "PASS", "HARM", "UNPROVEN"
ALPHA = 0.05
_Verdict = tuple[str, str]


def judge_guardrails(plan: Mapping[str, Any], comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry per registered guardrail, with status and reason. An empty list if none is registered."""
    rails = [_entry(plan, comparison, rail) for rail in plan.get("guardrails", [])]
    watched = [rail for rail in rails if rail["kind"] != "exact"]
    adjusted = holm({str(i): rail["p_harm"] for i, rail in enumerate(watched)})
    for i, rail in enumerate(watched):
        rail["p_harm_holm"] = adjusted[str(i)]
        _judge_interval(rail, len(watched))
    for rail in rails:
        rail.pop("_psi", None)
        _close_invalid(rail, comparison)
    return rails


def _close_invalid(rail: dict[str, Any], comparison: Mapping[str, Any]) -> None:
    """Invalid evidence proves nothing by intervals and passes nothing; a broken count stays broken."""
    if (
        comparison["valid"] is True
        or rail["status"] == UNPROVEN
        or (rail["kind"], rail["status"]) == ("exact", HARM)
    ):
        return
    rail["reason"] = f"the evidence is invalid (otherwise {rail['status']}: {rail['reason']})"
    rail["status"] = UNPROVEN


def _entry(plan: Mapping[str, Any], comparison: Mapping[str, Any], rail: Mapping[str, Any]) -> dict[str, Any]:
    metric, statistic = str(rail["metric"]), str(rail["statistic"])
    key = metric_key(dict(plan), metric, statistic)
    found = comparison["metrics"].get(key, {})
    effect = found.get("effects", {}).get("candidate") or {}
    entry: dict[str, Any] = {
        "metric": metric,
        "statistic": statistic,
        "kind": rail["kind"],
        "margin": rail["margin"],
        "better": rail["better"],
        "registered": rail.get("registered"),
        **{name: effect.get(name) for name in ("ratio", "ci_low", "ci_high")},
        "n": len(found.get("arms", {}).get("candidate", {}).get("per_block", [])),
        "p_harm": None,
    }
    if rail["kind"] == "exact":
        entry["status"], entry["reason"] = _judge_exact(comparison, found, entry)
        return entry
    psi = _oriented(effect.get("d", []), str(rail["better"]))
    entry["_psi"] = psi
    entry["p_harm"] = t_p_value(psi, math.log1p(float(rail["margin"])), "greater")
    entry["a_a"] = found.get("a_a", {"passed": None, "detail": "the metric was not compared"})
    entry["missing"] = effect.get("reason", "") or ("" if effect else "the metric was not compared")
    return entry


def _oriented(d: list[float | None], better: str) -> list[float | None]:
    sign = -1.0 if better == "higher" else 1.0
    return [None if value is None else sign * value for value in d]


def _judge_interval(rail: dict[str, Any], watched: int) -> None:
    psi = rail["_psi"]
    present = [value for value in psi if value is not None]
    usable = bool(psi) and len(present) == len(psi)
    fired, e, threshold = fires(present, float(rail["margin"]), watched) if usable else (False, 1.0, math.inf)
    rail["e_value"], rail["e_threshold"] = e, threshold if math.isfinite(threshold) else None
    rail["e_fired"] = fired
    rail["status"], rail["reason"] = _interval_verdict(rail, psi)


def _interval_verdict(rail: dict[str, Any], psi: list[float | None]) -> _Verdict:
    both = t_interval(psi, alpha=2 * ALPHA)
    if both is None:
        return UNPROVEN, rail.pop("missing", "") or "no interval"
    rail.pop("missing", None)
    if both.s == 0.0 and both.mean == 0.0:
        return UNPROVEN, "both arms have exactly the same values in every block: nothing was compared"
    edge = math.log1p(float(rail["margin"]))
    rail["upper_bound"] = math.expm1(both.high)
    holm_p = rail["p_harm_holm"]
    if holm_p is not None and holm_p < ALPHA:
        worse = f"at least {100 * math.expm1(both.low):.2f} % worse"
        return HARM, f"{worse} (95 %, one-sided), margin {100 * rail['margin']:g} %"
    if rail["a_a"]["passed"] is not True:
        return UNPROVEN, f"A/A of this metric: {rail['a_a']['detail']}"
    bound = (
        f"{_bound_words(both.high, str(rail['better']))} (95 %, one-sided), margin {100 * rail['margin']:g} %"
    )
    if both.high < edge:
        return PASS, bound
    return (
        UNPROVEN,
        f"{bound}; about {_blocks_needed(both.s, edge)} blocks would resolve it if nothing changed",
    )


def _bound_words(upper: float, better: str) -> str:
    if upper < 0:
        gain = math.expm1(-upper) if better == "higher" else -math.expm1(upper)
        return f"at least {100 * gain:.2f} % better"
    return f"at most {100 * math.expm1(upper):.2f} % worse"


def _blocks_needed(s: float, edge: float) -> int:
    """n >= ((z.95 + z.80) s / ln(1 + margin))^2, at least six."""
    return max(6, math.ceil(((1.6449 + 0.8416) * s / edge) ** 2)) if edge > 0 else 0


def _judge_exact(comparison: Mapping[str, Any], found: Mapping[str, Any], rail: dict[str, Any]) -> _Verdict:
    if rail["metric"] == "outputs":
        return _outputs(comparison)
    if rail["metric"] in QUALITY:
        return _quality(comparison, rail)
    arms = found.get("arms", {})
    base, other = (arms.get(arm, {}).get("per_block", []) for arm in ("baseline", "candidate"))
    if not base or not other:
        return UNPROVEN, "no values of both arms"
    if any(v is None for v in (*base, *other)):
        reason = arms["baseline"].get("reason") or arms["candidate"].get("reason")
        return UNPROVEN, f"a run has no value: {reason}"
    judge = _EXACT.get(rail["metric"], _ratio)
    return judge(base, other, rail)


def _outputs(comparison: Mapping[str, Any]) -> _Verdict:
    equivalence, divergence = comparison["equivalence"], comparison["divergence"].get("candidate")
    if equivalence.get("equal") is False:
        return HARM, f"invariant mode: {equivalence['reason']}"
    if divergence is not None and divergence["wrong"]:
        return (
            HARM,
            f"{divergence['wrong']} of {divergence['compared']} timed outputs differ beyond near ties",
        )
    if equivalence.get("equal") is not True:
        return UNPROVEN, f"not compared bitwise: {equivalence.get('reason') or 'no equivalence phase'}"
    if divergence is None or not divergence["compared"]:
        return UNPROVEN, "no timed outputs of both arms to compare"
    same, near = divergence["identical"], divergence["harmless"]
    detail = f"{equivalence['requests']} requests bitwise equal in invariant mode"
    return PASS, f"{detail}; timed: {same} of {divergence['compared']} identical, {near} near ties"


def _quality(comparison: Mapping[str, Any], rail: dict[str, Any]) -> _Verdict:
    """The margin is the largest accepted distance from the perfect value."""
    metric = str(rail["metric"])
    value, reason = quality_value(comparison.get("quality"), metric)
    if value is None:
        return UNPROVEN, reason
    known = QUALITY[metric]
    sign = -1.0 if known.better == "higher" else 1.0
    rail["value"], rail["limit"] = value, known.perfect + sign * float(rail["margin"])
    word = "least" if known.better == "higher" else "most"
    text = f"{value:.6g} {known.unit}, registered bound: at {word} {rail['limit']:g}"
    return (PASS if distance(metric, value) <= float(rail["margin"]) else HARM), text


def _error_rate(base: list[float], other: list[float], rail: dict[str, Any]) -> _Verdict:
    more = sum(other) / len(other) - sum(base) / len(base)
    rail["difference"] = more
    text = f"{100 * more:+.3f} points of failed requests, margin {100 * rail['margin']:g} points"
    return (PASS if more <= rail["margin"] else HARM), text


def _registered_or_ratio(base: list[float], other: list[float], rail: dict[str, Any]) -> _Verdict:
    price = (rail.get("registered") or {}).get("predicted_bytes")
    if not isinstance(price, int):
        return _ratio(base, other, rail)
    peak, limit = max(other), price * (1 + rail["margin"])
    rail["limit"] = limit
    text = f"peak {peak:,.0f} bytes, registered {price:,} + {100 * rail['margin']:g} %"
    return (PASS if peak <= limit else HARM), text


def _ratio(base: list[float], other: list[float], rail: dict[str, Any]) -> _Verdict:
    """The worst block decides; from 0 nothing may grow. Where nothing may change, both directions are worse."""
    up, down = list(zip(base, other, strict=True)), list(zip(other, base, strict=True))
    pairs = {"higher": up, "equal": [*up, *down]}.get(rail["better"], down)
    if any(below <= 0 < above for above, below in pairs):
        return HARM, "a block went from or to 0, and no price was registered beforehand"
    worst = max((above / below for above, below in pairs if below > 0), default=1.0)
    text = f"worst block {100 * (worst - 1):+.3f} %, margin {100 * rail['margin']:g} %"
    return (PASS if worst <= 1 + rail["margin"] else HARM), text


_EXACT: dict[str, Callable[[list[float], list[float], dict[str, Any]], _Verdict]] = {
    "error_rate": _error_rate,
    "kv_bytes_peak": _registered_or_ratio,
}
