"""The decision rule: one pure function from plan, comparison and context to a decision with its whole trace.

First match wins:
1 evidence invalid -> HOLD (ROLLBACK when already serving blind). 2 hard limit broken -> ROLLBACK. 3 harm proven, or
the sequential harm test fires -> ROLLBACK. 4 everything proven and replicated -> PROMOTE to exactly the scope run.
5 blocks left -> CONTINUE, or from half of them on HOLD if the primary's upper bound lies below the smallest effect of
interest: more blocks would be futile, and stopping for futility cannot make a claim; it waits while A/A is too imprecise
to judge. 6 HOLD. There is no other way to PROMOTE: no data, a timeout or silence end in HOLD.
Before the last block only rules 1, 2 and the harm e-process of rule 3 can end a study.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

from counterproof.decide.answers import answer_all
from counterproof.decide.guardrails import HARM, PASS, judge_guardrails
from counterproof.decide.words import check_words
from counterproof.measure.compare import primary_key
from counterproof.measure.interval import t_interval
from counterproof.plan.reserve import a_a_imprecise

SCHEMA = "counterproof-decision/1"
RULE = "counterproof-rule/1"
PROMOTE, HOLD, ROLLBACK, CONTINUE = "PROMOTE", "HOLD", "ROLLBACK", "CONTINUE"
REPLICATED = "REPLICATED"
DRILL_DAYS = 14
EXPIRY_DAYS = 30


def decide(
    plan: Mapping[str, Any], comparison: Mapping[str, Any], context: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The decision of a study as decision.json holds it.

    `context`, all optional: now_utc (else the plan's date), evidence_utc (when the last run was sealed), serving (the change serves already), replication
    {"verdict"}, counterexamples {"open"}, drill {"passed", "age_days", "seconds"}. What is absent never helps.
    """
    known = dict(context or {})
    rails = judge_guardrails(plan, comparison)
    primary = judge_primary(plan, comparison)
    trace = _trace(plan, comparison, known, rails, primary)
    fired = next(step for step in trace if step["fired"])
    now = str(known.get("now_utc") or plan.get("created_utc"))
    # Judging old evidence again makes it no younger.
    expires = _expiry(str(known.get("evidence_utc") or now))
    return {
        "schema": SCHEMA,
        "study": plan["study"],
        "plan_sha256": comparison["plan_sha256"],
        "decision": fired["decision"],
        "rule": RULE,
        "fired": fired["rule"],
        "because": fired["because"],
        "decided_utc": now,
        "expires_utc": expires,
        "trace": trace,
        "primary": primary,
        "guardrails": rails,
        "scope": comparison["scope"]
        if fired["decision"] == PROMOTE
        else {**comparison["scope"], "granted": False},
        **answer_all(plan, comparison, known, rails, primary, expires),
    }


def judge_primary(plan: Mapping[str, Any], comparison: Mapping[str, Any]) -> dict[str, Any]:
    """The primary metric: effect, interval, noise floor, and whether its one-sided 95 % bound beats the SESOI."""
    registered = plan["primary"]
    entry = comparison["metrics"].get(primary_key(dict(plan)), {})
    effect = entry.get("effects", {}).get("candidate") or {}
    sign = 1.0 if registered["better"] == "higher" else -1.0
    gains = [None if d is None else sign * d for d in effect.get("d", [])]
    both = t_interval(gains, alpha=0.10)
    least, most = (None, None) if both is None else (both.low, both.high)
    return {
        "metric": registered["metric"],
        "statistic": registered["statistic"],
        "better": registered["better"],
        "unit": entry.get("unit"),
        "sesoi": registered["sesoi"],
        **{name: effect.get(name) for name in ("ratio", "ci_low", "ci_high", "k", "p_value", "sign_flip_p")},
        "noise_floor": entry.get("noise_floor"),
        **{name: entry.get(name) for name in ("mde", "a_a_passes", "mde_given_a_a", "mde_words")},
        "least_gain": None if least is None else math.expm1(least),
        "most_gain": None if most is None else math.expm1(most),
        "above_sesoi": least is not None and least > math.log1p(float(registered["sesoi"])),
        "verdict": entry.get("verdict", "not measured"),
        "reason": entry.get("reason", "the metric was not compared"),
    }


def _trace(
    plan: Mapping[str, Any],
    comparison: Mapping[str, Any],
    context: Mapping[str, Any],
    rails: list[dict[str, Any]],
    primary: dict[str, Any],
) -> list[dict[str, Any]]:
    """All rules with what each saw; several may match, the first decides."""
    return [
        _invalid(comparison, context),
        _hard_limit(comparison),
        _harm(comparison, rails),
        _promote(plan, comparison, context, rails, primary),
        _continue(comparison, primary),
        _hold(plan, rails, primary, context),
    ]


def _step(rule: str, fired: bool, decision: str, because: str, **inputs: Any) -> dict[str, Any]:
    return {"rule": rule, "fired": fired, "decision": decision, "because": because, "inputs": inputs}


def _invalid(comparison: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    refuted = [c for c in comparison["validity"] if c["passed"] is False]
    invalid = comparison["valid"] is not True or bool(refuted) or not comparison["validity"]
    serving = context.get("serving") is True
    because = (
        "; ".join(f"{check_words(c['check'])}: {c['detail']}" for c in refuted)
        or "every check of the evidence holds"
    )
    if invalid and not refuted:
        because = "the evidence was not shown to be valid"
    return _step(
        "1 evidence invalid",
        invalid,
        ROLLBACK if serving else HOLD,
        because,
        valid=comparison["valid"],
        refuted=[c["check"] for c in refuted],
        serving=serving,
    )


def _hard_limit(comparison: Mapping[str, Any]) -> dict[str, Any]:
    limits = comparison.get("hard_limits", [])
    broken = [limit for limit in limits if limit["broken"] is True]
    because = "; ".join(f"{b['limit']}: {b['detail']}" for b in broken) or "no hard limit is broken"
    inputs = {limit["limit"]: limit["broken"] for limit in limits}
    return _step("2 hard limit", bool(broken), ROLLBACK, because, **inputs)


def _harm(comparison: Mapping[str, Any], rails: list[dict[str, Any]]) -> dict[str, Any]:
    proven = [r for r in rails if r["status"] == HARM and (comparison["final"] or r["kind"] == "exact")]
    sequential = [r for r in rails if r.get("e_fired")]
    named = [f"{r['metric']} {r['statistic']}: {r['reason']}" for r in proven]
    named += [
        f"{r['metric']} {r['statistic']}: sequential test {r['e_value']:.1f} >= {r['e_threshold']:g}"
        for r in sequential
    ]
    return _step(
        "3 harm",
        bool(named),
        ROLLBACK,
        "; ".join(named) or "no guardrail is proven to be harmed",
        harmed=[r["metric"] for r in proven],
        sequential=[r["metric"] for r in sequential],
        bounds_apply=comparison["final"],
    )


def _promote(
    plan: Mapping[str, Any],
    comparison: Mapping[str, Any],
    context: Mapping[str, Any],
    rails: list[dict[str, Any]],
    primary: dict[str, Any],
) -> dict[str, Any]:
    drill = context.get("drill") or {}
    age = drill.get("age_days")
    fresh = isinstance(age, int | float) and 0 <= age <= DRILL_DAYS
    conditions = {
        "may_claim": plan.get("exploratory") is False and plan.get("calibration") is False,
        "all_blocks_done": comparison["final"] is True,
        "guardrails_registered_and_passed": bool(rails) and all(r["status"] == PASS for r in rails),
        "primary_is_a_gain": primary["verdict"] == "gain",
        "primary_above_bound": primary["above_sesoi"] is True,
        "replicated": (context.get("replication") or {}).get("verdict") == REPLICATED,
        "no_open_counterexample": (context.get("counterexamples") or {}).get("open") == 0,
        "rollback_drill_fresh": drill.get("passed") is True and fresh,
    }
    missing = [name.replace("_", " ") for name, met in conditions.items() if not met]
    because = "everything is proven and replicated" if not missing else f"not met: {', '.join(missing)}"
    return _step("4 promote", not missing, PROMOTE, because, **conditions)


def _continue(comparison: Mapping[str, Any], primary: Mapping[str, Any]) -> dict[str, Any]:
    planned, done = int(comparison["blocks_planned"]), len(comparison["blocks"])
    left, most = planned - done, primary["most_gain"]
    enough = left > 0 and 2 * done >= planned and most is not None and most < float(primary["sesoi"])
    # Stopping while only A/A is still too imprecise to judge would turn what the study shows into INVALID.
    futile = enough and not a_a_imprecise(comparison)
    because = f"{left} of {planned} blocks are left" if left else "all planned blocks are done"
    if enough and not futile:
        because += ", and A/A needs them: it is too imprecise to judge"
    if futile:
        because += (
            f", and they would be futile: the gain is at most {100 * most:.1f} % (95 %, one-sided), "
            f"the smallest of interest {100 * float(primary['sesoi']):g} %"
        )
    return _step(
        "5 blocks left", left > 0, HOLD if futile else CONTINUE, because, blocks_left=left, futile=futile
    )


def _hold(
    plan: Mapping[str, Any], rails: list[dict[str, Any]], primary: dict[str, Any], context: Mapping[str, Any]
) -> dict[str, Any]:
    reasons = []
    if plan.get("calibration"):
        reasons.append("a calibration compares equal arms: there is nothing to decide")
    elif plan.get("exploratory"):
        reasons.append("an exploratory study can never claim")
    if primary["verdict"] != "gain" and not plan.get("calibration"):
        reasons.append(f"the primary metric shows no gain ({primary['reason']})")
    elif primary["verdict"] == "gain" and not primary["above_sesoi"]:
        reasons.append("the gain is not proven to reach the smallest effect of interest")
    reasons += [
        f"{r['metric']} {r['statistic']} is unproven ({r['reason']})"
        for r in rails
        if r["status"] not in (PASS, HARM)
    ]
    if (context.get("replication") or {}).get("verdict") != REPLICATED:
        reasons.append("nobody else has replicated it yet")
    return _step("6 hold", True, HOLD, "; ".join(reasons) or "a condition of promotion is not met")


def _expiry(now: str) -> str | None:
    try:
        moment = datetime.datetime.fromisoformat(now)
    except ValueError:
        return None
    return (
        (moment + datetime.timedelta(days=EXPIRY_DAYS)).isoformat(timespec="seconds").replace("+00:00", "Z")
    )
