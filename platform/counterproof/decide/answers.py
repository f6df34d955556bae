"""The three questions every report answers: where the gain came from, where the cost went, how to stop and go back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterproof.decide.words import cell_words, change, metric_words, number
from counterproof.measure.quality import QUALITY

NEVER_TESTED = (
    "hardware other than this machine",
    "prompt lengths, output lengths and concurrency outside the scope",
    "text of another kind than the workload's",
    "rare stalls: see the bound on their probability",
    "long runs (hours), memory pressure and restarts under load",
)

# In which order prices are named, and below which share of the whole time a stage's is only mentioned.
_WEIGHT = ("memory", "memory_kept", "quality", "startup", "time_p50", "time_p99", "bytes_moved")
SMALL = 0.01
# Counted, not sampled: any growth is a cost, with or without an interval.
_EXACT = (("state", "memory"), ("state", "memory_kept"), ("compute", "memory"))


def answer_all(
    plan: Mapping[str, Any],
    comparison: Mapping[str, Any],
    context: Mapping[str, Any],
    rails: list[dict[str, Any]],
    primary: Mapping[str, Any],
    expires: str | None,
) -> dict[str, Any]:
    """The decision's `answers`, `reversal` and `not_tested`."""
    reversal = reversal_of(primary)
    return {
        "answers": {
            "gain_from": gain_from(comparison, primary),
            "cost_went": cost_went(comparison),
            "stop_and_rollback": stop_and_rollback(plan, comparison, context, rails, reversal, expires),
        },
        "reversal": reversal,
        "not_tested": not_tested(comparison),
    }


def gain_from(comparison: Mapping[str, Any], primary: Mapping[str, Any]) -> dict[str, Any]:
    """The stage with the largest saving and its share of the whole, if the trace explains the change."""
    stages = comparison["stages"]
    total = stages["total_ms"]
    answer: dict[str, Any] = {
        "resolved": bool(stages["resolved"]),
        "stage": None,
        "phase": None,
        "share": None,
    }
    if not stages["resolved"] or not total:
        return {**answer, "text": f"Not attributed: {stages['reason']}."}
    sign = 1 if total > 0 else -1
    bars = sorted(stages["waterfall"], key=lambda bar: -sign * bar["delta_ms"])
    top = bars[0]
    share = top["delta_ms"] / total
    verb = "saves" if total < 0 else "adds"
    whole = f"{abs(total):.1f} ms of mean end-to-end latency per request"
    text = f"{top['stage']} / {top['phase']} {verb} {abs(top['delta_ms']):.1f} ms, {100 * share:.0f} % of {whole}."
    against = [
        b for b in bars if b["ci_low"] is not None and (b["ci_low"] > 0 if total < 0 else b["ci_high"] < 0)
    ]
    if against:
        text += (
            " Against it: "
            + ", ".join(f"{b['stage']} / {b['phase']} {b['delta_ms']:+.2f} ms" for b in against)
            + "."
        )
    if primary["verdict"] != "gain":
        text += " The primary metric shows no claimable gain, so this describes and claims nothing."
    return {
        **answer,
        **{name: top[name] for name in ("stage", "phase", "delta_ms", "ci_low", "ci_high")},
        "share": share,
        "total_ms": total,
        "residual_ms": stages["residual_ms"],
        "text": text,
    }


def cost_went(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Every cell of the cost matrix that got worse beyond its interval, and what was not measured."""
    measured = [c for c in comparison["cost"] if c["status"] == "measured"]
    worse = sorted((c for c in measured if _worse(c)), key=lambda c: _WEIGHT.index(c["resource"]))
    blank = [
        f"{cell_words(c['stage'], c['resource'])}: {c['reason']}"
        for c in comparison["cost"]
        if c not in measured
    ]
    keys = ("stage", "resource", "baseline", "candidate", "ratio", "ci_low", "ci_high", "unit")
    listed = [{key: cell[key] for key in keys} for cell in worse]
    return {
        "found": bool(listed),
        "cells": listed,
        "not_measured": blank,
        "text": _cost_words(comparison, worse, measured, blank),
    }


def _cost_words(
    comparison: Mapping[str, Any],
    worse: list[dict[str, Any]],
    measured: list[dict[str, Any]],
    blank: list[str],
) -> str:
    if not measured:
        return "Nothing was measured."
    judged = any(c["difference"]["ci_low"] is not None for c in measured)
    if not worse:
        if not judged:
            return "Too few blocks for intervals: a cost could not be told from noise."
        listed = f"Not measured: {'; '.join(blank)}." if blank else "Every cell of the matrix was measured."
        unpaid = "a gain without a price is a reason to look again" if _gained(comparison) else ""
        proof = "that is not proof that there is none"
        return f"Cost not found in what was measured; {unpaid or proof}. {listed}"
    small = [c for c in worse if _negligible(comparison, c)]
    text = "; ".join(_price(c) for c in worse if c not in small)
    if small:
        names = ", ".join(cell_words(c["stage"], c["resource"]) for c in small)
        text += f"{'; ' if text else ''}below {100 * SMALL:g} % of the end-to-end time: {names}"
    if not judged:
        text += "; the rest could not be told from noise: too few blocks for intervals"
    return f"{text[:1].upper()}{text[1:]}."


def _gained(comparison: Mapping[str, Any]) -> bool:
    """Whether any metric is claimed as a gain."""
    return any(entry["verdict"] == "gain" for entry in comparison["metrics"].values())


def _negligible(comparison: Mapping[str, Any], cell: Mapping[str, Any]) -> bool:
    """A stage's time that grew by less than 1 % of the whole request's."""
    if not cell["resource"].startswith("time"):
        return False
    whole = next(
        (c["baseline"] for c in comparison["cost"] if (c["stage"], c["resource"]) == ("whole", "time_p50")),
        None,
    )
    return whole is not None and cell["candidate"] - cell["baseline"] < SMALL * whole


def _worse(cell: Mapping[str, Any]) -> bool:
    if cell["resource"] == "quality":
        return bool(cell["candidate"] < cell["baseline"])
    if (cell["stage"], cell["resource"]) in _EXACT:
        return bool(cell["candidate"] > cell["baseline"])
    if (cell["stage"], cell["resource"]) == ("state", "startup") and not cell["baseline"]:
        return bool(cell["candidate"] > 0)  # work that was not there before is no noise
    low = cell["difference"]["ci_low"]
    return low is not None and low > 0


def _price(cell: Mapping[str, Any]) -> str:
    name = cell_words(cell["stage"], cell["resource"])
    values = f"{number(cell['baseline'], cell['unit'])} to {number(cell['candidate'], cell['unit'])}"
    if cell["ratio"] is None:
        return f"{name}: {values}"
    return f"{name}: {values} ({change(cell['ratio'])})"


def stop_and_rollback(
    plan: Mapping[str, Any],
    comparison: Mapping[str, Any],
    context: Mapping[str, Any],
    rails: list[dict[str, Any]],
    reversal: str,
    expires: str | None,
) -> dict[str, Any]:
    """Trigger per metric, the configuration to go back to, the command, the drill, reversal and expiry."""
    back = [
        {"path": d["path"], "from": d["candidate"], "to": d["baseline"]}
        for d in comparison["diffs"]["config"]
    ]
    drill = context.get("drill") or {}
    model = comparison["scope"].get("model") or "MODEL"
    overrides = " ".join(f"{b['path'].removeprefix('engine.')}={_scalar(b['to'])}" for b in back)
    scope = plan["experiment"]
    return {
        "configuration": back,
        "command": f"counterproof rollback {scope}" if back else "",
        "by_hand": f"intaglio serve --model {model} {overrides}" if back else "",
        "promote_command": f"counterproof promote {plan['study']} --scope {scope}" if back else "",
        "drill_command": f"counterproof drill {plan['study']}" if back else "",
        "state_command": f"counterproof deployments {scope}" if back else "",
        "verify_command": f"counterproof run {plan['experiment']}",
        "triggers": [_trigger(comparison, rail) for rail in rails],
        "drill": {
            "done": bool(drill.get("passed")),
            "seconds": drill.get("seconds"),
            "age_days": drill.get("age_days"),
            "latency": drill.get("latency"),
            "reason": ""
            if drill.get("passed")
            else drill.get("reason") or "no rollback drill is recorded for this build",
        },
        "reversal": reversal,
        "expires_utc": expires,
    }


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _trigger(comparison: Mapping[str, Any], rail: Mapping[str, Any]) -> dict[str, Any]:
    """What to watch while the change serves: condition, window and action of one guardrail."""
    name = metric_words(rail["metric"], rail["statistic"])
    trigger: dict[str, Any] = {"metric": rail["metric"], "statistic": rail["statistic"], "threshold": None}
    action = "go back to the baseline configuration at once"
    if rail["metric"] == "outputs":
        condition, window = (
            "any output that differs from the baseline's beyond a near tie",
            "every sampled request",
        )
    elif rail["metric"] in QUALITY:
        known, trigger["threshold"] = QUALITY[rail["metric"]], rail.get("limit")
        side = "below" if known.better == "higher" else "above"
        margin = known.perfect + (-rail["margin"] if side == "below" else rail["margin"])
        condition = f"{name} {side} {margin:g} on the same text"
        window = "every new build or model"
    elif rail["kind"] == "exact":
        limit = rail.get("limit")
        trigger["threshold"] = limit
        price = (
            f"above {number(limit, 'bytes')}" if limit else f"worse by more than {100 * rail['margin']:g} %"
        )
        condition = f"{name} {price}"
        if rail["metric"] == "error_rate":
            condition = f"{name} more than {100 * rail['margin']:g} points above the baseline"
        window = "every run"
    else:
        condition, trigger["threshold"] = _threshold(comparison, rail, name)
        window = "six runs, each with at least as many requests as here"
        action = "stop, re-measure in six blocks, and go back if the bound stays beyond the margin"
    return {**trigger, "condition": condition, "window": window, "action": action}


def _threshold(comparison: Mapping[str, Any], rail: Mapping[str, Any], name: str) -> tuple[str, float | None]:
    higher = rail["better"] == "higher"
    factor = 1 / (1 + rail["margin"]) if higher else 1 + rail["margin"]
    entries = comparison["metrics"].values()
    entry = next(
        (e for e in entries if (e["metric"], e["statistic"]) == (rail["metric"], rail["statistic"])), None
    )
    values = [
        v for v in (entry or {}).get("arms", {}).get("baseline", {}).get("per_block", []) if v is not None
    ]
    side = "below" if higher else "above"
    relative = f"{name} {side} {factor:.3f} times the baseline"
    if not values or entry is None:
        return relative, None
    limit = factor * sum(values) / len(values)
    return f"{relative} ({number(limit, entry['unit'])} on this machine)", limit


def reversal_of(primary: Mapping[str, Any]) -> str:
    """The observation that would overturn the decision, in one sentence."""
    name = metric_words(primary["metric"], primary["statistic"])
    least = f"{100 * primary['sesoi']:g} %"
    return (
        f"A valid replication whose 95 % interval for {name} contains no change, or whose bound on the gain stays "
        f"below {least}; one wrong output confirmed by fresh runs; or a guardrail shown to be beyond its margin."
    )


def not_tested(comparison: Mapping[str, Any]) -> list[str]:
    """What the evidence is silent on, longest-reaching first."""
    listed = list(NEVER_TESTED)
    bound = comparison.get("stall_probability_bound")
    if bound is not None:
        n = len(comparison["blocks"])
        listed[3] = (
            f"rare stalls: none in {n} blocks still allows up to {100 * bound:.0f} % of blocks to stall (95 %)"
        )
    percentiles = sorted(
        key
        for key, entry in comparison["metrics"].items()
        if entry["statistic"] in ("p90", "p99", "p99.9") and entry["arms"]["baseline"]["reason"]
    )
    if percentiles:
        listed.append(f"tails below their sample floor: {', '.join(percentiles)}")
    return [*listed, *_failures(comparison.get("failures"))]


def _failures(rows: list[dict[str, Any]] | None) -> list[str]:
    """What is not known about failure and recovery, or was not survived."""
    if not rows:
        return ["failure and recovery: no fault was injected"]
    lost = sorted({str(row["fault"]) for row in rows if row["outcome"] == "not recovered"})
    return [f"failure and recovery: not recovered from {', '.join(lost)}"] if lost else []
