"""What promotions and rollbacks write into the ledger of deployments. Pure."""

from __future__ import annotations

import datetime
from typing import Any

from counterproof.decide.deploy.refusal import DeploymentRefusedError, Refusal
from counterproof.errors import InputError
from counterproof.record import canonical
from counterproof.record.deployment_state import BASELINE, CANDIDATE, ScopeState, Served

_ENGINE = "engine."


def engine_config(plan: dict[str, Any], arm: str) -> dict[str, Any]:
    """An arm's engine configuration: paths without `engine.`. Raises InputError for a plan without that arm."""
    if arm not in plan["arms"]:
        raise InputError(
            f"{plan['study']} has no {arm}", details=["a calibration compares equal arms: nothing to deploy"]
        )
    config = plan["arms"][arm]["config"]
    return {path.removeprefix(_ENGINE): v for path, v in config.items() if path.startswith(_ENGINE)}


def both_configs(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The engine configurations of baseline and candidate. Raises InputError when there is nothing to change."""
    found = {arm: engine_config(plan, arm) for arm in (BASELINE, CANDIDATE)}
    if found[BASELINE] == found[CANDIDATE]:
        raise InputError(
            f"the arms of {plan['study']} run the engine with the same configuration",
            details=["only a change of the engine's configuration can be deployed and taken back"],
        )
    return found


def promotion(
    plan: dict[str, Any],
    plan_sha256: str,
    scope: str,
    box: dict[str, Any],
    *,
    now: datetime.datetime,
    decision_sha256: str | None,
    evidence_expires_utc: str | None,
    ends_utc: str | None = None,
    override_sha256: str | None = None,
) -> dict[str, Any]:
    """The fields of a `promoted` entry. decision_sha256 None: a drill on a ledger of its own."""
    arms = both_configs(plan)
    baseline, candidate = arms[BASELINE], arms[CANDIDATE]
    return {
        "scope": scope,
        "study": plan["study"],
        "plan_sha256": plan_sha256,
        "decision_sha256": decision_sha256,
        "box": box,
        "config": candidate,
        "config_sha256": canonical.sha256_json(candidate),
        "baseline_config": baseline,
        "baseline_sha256": canonical.sha256_json(baseline),
        "evidence_expires_utc": evidence_expires_utc,
        "ends_utc": ends_utc,
        "override_sha256": override_sha256,
        "checked_utc": stamp(now),
    }


def rollback(state: ScopeState, reason: str, now: datetime.datetime) -> dict[str, Any]:
    """The fields of a `rolled_back` entry. Raises DeploymentRefusedError when the baseline serves."""
    back = state.previous(now)
    if back is None:
        nothing = Refusal("SERVES_BASELINE", "the baseline serves", "there is nothing to go back from")
        raise DeploymentRefusedError(f"the rollback of {state.name}", [nothing])
    serving = state.champion(now)
    return {
        "scope": state.name,
        "study": serving.study,
        "from_seq": serving.seq,
        "to_seq": None if back.arm == BASELINE else back.seq,
        "config_sha256": back.config_sha256,
        "reason": reason,
        "checked_utc": stamp(now),
    }


def ended(served: Served, now: datetime.datetime) -> dict[str, Any]:
    """The fields of an `expired` entry: an override whose time is over."""
    return {
        "scope": served.scope,
        "study": served.study,
        "from_seq": served.seq,
        "ends_utc": served.ends_utc,
        "checked_utc": stamp(now),
    }


def stamp(now: datetime.datetime) -> str:
    """A time as the ledger writes it."""
    return now.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
