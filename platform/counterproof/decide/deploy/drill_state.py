"""Is the rollback drill of a study still worth something? Pure: from the ledger's entries and the plan."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from counterproof.decide.rule import DRILL_DAYS
from counterproof.record.deployment_state import drills, moment

CODE = ("kind", "sha", "dirty_sha256")


def code_of(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say which code it was, of a plan's or a drill's code."""
    return {name: identity.get(name) for name in CODE}


def drill_context(
    events: Iterable[Mapping[str, Any]], plan: Mapping[str, Any], plan_sha256: str, now: datetime.datetime
) -> dict[str, Any]:
    """The newest drill as the decision rule reads it: passed, age_days, seconds; `reason` says what it lacks.

    The newest counts, not the best. A drill of another plan or of other code than was measured has not passed.
    """
    done = drills(events, str(plan["study"]))
    if not done:
        return {"passed": False, "reason": "no rollback drill is recorded"}
    last = done[-1]
    age = (now - moment(last["time_utc"])).total_seconds() / 86_400
    reason = _lacks(last, plan, plan_sha256, age)
    return {
        "passed": reason == "",
        "age_days": age,
        "seconds": last["seconds"],
        "utc": last["time_utc"],
        "requests": last["requests"],
        "failed": last["failed"],
        "latency": last["latency"],
        "reason": reason,
    }


def _lacks(drill: Mapping[str, Any], plan: Mapping[str, Any], plan_sha256: str, age: float) -> str:
    if drill["passed"] is not True:
        return f"the last rollback drill failed: {drill['reason']}"
    if drill["plan_sha256"] != plan_sha256:
        return "the last rollback drill was of another plan"
    if code_of(drill["code"]) != code_of(plan["code"]):
        return "the last rollback drill was of other code than was measured"
    if age < 0:
        return "the last rollback drill lies in the future: a clock is wrong"
    if age > DRILL_DAYS:
        return f"the last rollback drill is {age:.0f} days old; it counts for {DRILL_DAYS}"
    return ""
