"""What became of a calibration's studies: one row each, and the checks over all rows. Pure functions of their records."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

# Kind -> share of a step's time that is planted; None: the smallest delay that is a difference at all, 1 microsecond.
KINDS: dict[str, float | None] = {"aa": None, "slow20": 0.20, "slow5": 0.05}
WORDS = {"aa": "A/A", "slow20": "20 % slower", "slow5": "5 % slower"}
FOUND, INCONCLUSIVE, NO_EFFECT, CLAIMED, INVALID = "found", "inconclusive", "no effect", "claimed", "invalid"
# The planted share may be off by so much of itself: a step's time drifts between two studies.
DRIFT = 0.25
AA_US = 1
AA_SHARE = 0.005
MAY_CLAIM = 1


def row_of(
    kind: str, plan: Mapping[str, Any], comparison: Mapping[str, Any], decision: Mapping[str, Any]
) -> dict[str, Any]:
    """One study in numbers. Times in microseconds, effects as fractions (0.05: 5 % slower)."""
    primary = decision["primary"]
    entry = comparison["metrics"][primary["metric"]]
    steps = [1000 * value for value in entry["arms"]["baseline"]["per_block"] if value is not None]
    step_us = statistics.median(steps) if steps else None
    delay_us = int(plan["factor"]["candidate"])
    claims = [
        f"{found['metric']} {found['statistic']}: {found['verdict']}"
        for found in comparison["metrics"].values()
        if found["verdict"] in ("gain", "loss")
    ]
    rails = [rail for rail in decision["guardrails"] if rail["kind"] != "exact"]
    row = {
        "study": plan["study"],
        "kind": kind,
        "delay_us": delay_us,
        "step_us": step_us,
        "planted": delay_us / step_us if step_us else None,
        "effect": _less_one(primary["ratio"]),
        "ci_low": _less_one(primary["ci_low"]),
        "ci_high": _less_one(primary["ci_high"]),
        "floor": primary["noise_floor"],
        **{name: primary[name] for name in ("mde", "a_a_passes", "mde_given_a_a", "mde_words")},
        "blocks": len(comparison["blocks"]),
        "extended": len(comparison["extensions"]),
        "valid": comparison["valid"],
        "refuted": [check["check"] for check in comparison["validity"] if check["passed"] is False],
        "claims": claims,
        "harmed": [_name(rail) for rail in rails if rail["status"] == "HARM" or rail["e_fired"]],
        "proven_inside": [_name(rail) for rail in rails if rail["status"] == "PASS"],
        "decision": decision["decision"],
        "fired": decision["fired"],
        "because": decision["because"],
    }
    return {**row, "outcome": outcome_of(row)}


def outcome_of(row: Mapping[str, Any]) -> str:
    """What the study says of its candidate. "No effect" is said where a harm is called proven to be inside its margin,
    or a gain is claimed although the candidate is slower."""
    if not row["valid"]:
        return INVALID
    if row["kind"] == "aa":
        return CLAIMED if row["claims"] or row["harmed"] else INCONCLUSIVE
    if any(claim.endswith(": gain") for claim in row["claims"]):
        return NO_EFFECT
    slower = row["decision"] == "ROLLBACK" and row["fired"].startswith("3 ")
    if slower or any(claim.startswith("tpot_ms p50") for claim in row["claims"]):
        return FOUND
    return NO_EFFECT if "tpot_ms p50" in row["proven_inside"] else INCONCLUSIVE


def checks(rows: Sequence[Mapping[str, Any]], each: int) -> list[dict[str, Any]]:
    """The acceptance of a calibration, check by check; `studies` names those that break it."""
    return [
        _check(
            f"{each} studies of every kind",
            [WORDS[kind] for kind in KINDS if sum(row["kind"] == kind for row in rows) != each],
        ),
        _check(
            "what was planted is what is said",
            [row["study"] for row in rows if not planted_right(row)],
        ),
        _check(
            f"A/A claims something in at most {MAY_CLAIM} study",
            [row["study"] for row in rows if row["kind"] == "aa" and (row["claims"] or row["harmed"])],
            allowed=MAY_CLAIM,
        ),
        _check(
            "20 % is found in every study",
            [row["study"] for row in rows if row["kind"] == "slow20" and row["outcome"] != FOUND],
        ),
        _check(
            "5 % is found, or inconclusive with the smallest detectable effect beside it (or, where A/A lets too few "
            "studies pass for any, the one given that it passes)",
            [row["study"] for row in rows if row["kind"] == "slow5" and not _honest(row)],
        ),
    ]


def planted_right(row: Mapping[str, Any]) -> bool:
    """Whether the delay is the share of the step that its kind says, by the study's own baseline."""
    wanted, planted = KINDS[row["kind"]], row["planted"]
    if planted is None:
        return False
    return bool(planted <= AA_SHARE if wanted is None else abs(planted / wanted - 1) <= DRIFT)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows to read."""
    head = (
        f"{'study':<12}{'planted':>9}{'effect':>9}  {'95 % interval':<20}{'floor':>7}{'MDE':>8}{'blocks':>7}"
    )
    lines = [f"{head}  outcome"]
    for row in rows:
        interval = f"[{_percent(row['ci_low'])}, {_percent(row['ci_high'])}]"
        outcome = f"{row['outcome']} ({row['decision']}{', ' + ', '.join(row['refuted']) if row['refuted'] else ''})"
        lines.append(
            f"{row['study']:<12}{_percent(row['planted']):>9}{_percent(row['effect']):>9}  {interval:<20}"
            f"{_percent(row['floor'], signed=False):>7}{_detectable(row):>8}{row['blocks']:>7}  {outcome}"
        )
    if any(row["mde"] is None and row["mde_given_a_a"] is not None for row in rows):
        lines.append(
            "* A/A lets too few such studies pass for an 80 % power; detected with it given that A/A passes"
        )
    return "\n".join(lines)


def _honest(row: Mapping[str, Any]) -> bool:
    told = row["mde"] is not None or (row["a_a_passes"] is not None and row["mde_given_a_a"] is not None)
    return row["outcome"] == FOUND or (row["outcome"] in (INCONCLUSIVE, INVALID) and told)


def _detectable(row: Mapping[str, Any]) -> str:
    if row["mde"] is None and row["mde_given_a_a"] is not None:
        return f"{_percent(row['mde_given_a_a'], signed=False)}*"
    return _percent(row["mde"], signed=False)


def _check(name: str, studies: list[str], allowed: int = 0) -> dict[str, Any]:
    return {"check": name, "passed": len(studies) <= allowed, "studies": studies}


def _name(rail: Mapping[str, Any]) -> str:
    return f"{rail['metric']} {rail['statistic']}"


def _less_one(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1


def _percent(fraction: float | None, *, signed: bool = True) -> str:
    if fraction is None:
        return "-"
    return f"{100 * fraction:+.1f} %" if signed else f"{100 * fraction:.1f} %"
