"""What an override may do. Pure.

Two people may together let a promotion through although its decision has expired or its rollback drill is stale: that
is a risk in operation, and they bear it by name, for a reason, until a date. It is never more evidence: no override
stands in for a replication, for an open counterexample or for a wider scope.
"""

from __future__ import annotations

import datetime
from typing import Any

from counterproof.decide.deploy.refusal import Refusal
from counterproof.decide.deploy.reviewer import SignedOverride
from counterproof.errors import EvidenceError
from counterproof.record.deployment_state import moment

EXPIRED, STALE_DRILL = "EXPIRED", "STALE_DRILL"
WAIVABLE = (EXPIRED, STALE_DRILL)
SIGNERS = 2
LONGEST_DAYS = 30
LEAST_REASON = 10


def faults(
    override: SignedOverride, plan: dict[str, Any], plan_sha256: str, scope: str, now: datetime.datetime
) -> list[Refusal]:
    """Why this override counts for nothing; empty when it counts."""
    found = [_signed(override), _about(override, plan, plan_sha256, scope), _waives(override)]
    found += [_reason(override), _time(override, now)]
    return [refusal for refusal in found if refusal is not None]


def waived(refusals: list[Refusal], override: SignedOverride) -> list[Refusal]:
    """What is left of the refusals. Only what is waivable AND named in the override is taken off."""
    return [one for one in refusals if one.code not in WAIVABLE or one.code not in override.waives]


def _signed(override: SignedOverride) -> Refusal | None:
    if len(set(override.signers)) >= SIGNERS:
        return None
    by = ", ".join(sorted(set(override.signers))) or "nobody"
    return Refusal(
        "OVERRIDE_SIGNERS", f"it is signed by {by} alone", "have a second person sign the same override"
    )


def _about(override: SignedOverride, plan: dict[str, Any], plan_sha256: str, scope: str) -> Refusal | None:
    asked = (plan["study"], plan_sha256, scope)
    if (override.study, override.plan_sha256, override.scope) == asked:
        return None
    return Refusal(
        "OVERRIDE_SUBJECT",
        f"it was signed for study {override.study}, scope {override.scope}",
        f"have one signed for study {plan['study']}, scope {scope}",
    )


def _waives(override: SignedOverride) -> Refusal | None:
    if override.waives and set(override.waives) <= set(WAIVABLE):
        return None
    return Refusal(
        "OVERRIDE_REACH",
        f"it waives {', '.join(override.waives) or 'nothing'}",
        f"only {' and '.join(WAIVABLE)} can be waived: an override is no evidence and widens no scope",
    )


def _reason(override: SignedOverride) -> Refusal | None:
    if len(override.reason.strip()) >= LEAST_REASON:
        return None
    return Refusal("OVERRIDE_REASON", "it gives no reason", "say in words why this cannot wait")


def _time(override: SignedOverride, now: datetime.datetime) -> Refusal | None:
    try:
        end = moment(override.expires_utc)
    except EvidenceError as error:
        return Refusal("OVERRIDE_EXPIRY", f"it has no expiry: {error}", "sign one with an expiry")
    if end <= now:
        return Refusal(
            "OVERRIDE_EXPIRY",
            f"it expired on {override.expires_utc}",
            "sign a new one, if it is still needed",
        )
    if end - now > datetime.timedelta(days=LONGEST_DAYS):
        return Refusal(
            "OVERRIDE_EXPIRY",
            f"it would hold until {override.expires_utc}",
            f"let it expire within {LONGEST_DAYS} days",
        )
    return None
