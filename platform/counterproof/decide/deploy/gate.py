"""May this study's candidate serve this scope? One pure function that lists every reason against it.

The decision is asked again, not trusted: its replication, its counterexamples and its drill are looked at as they are
now, since all three can change after it was written.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from counterproof.decide.deploy import box, override
from counterproof.decide.deploy.drill_state import code_of
from counterproof.decide.deploy.refusal import Refusal
from counterproof.decide.deploy.reviewer import Finding, SignedOverride
from counterproof.decide.rule import HOLD, PROMOTE, REPLICATED
from counterproof.record.deployment_state import ScopeState, moment

DRILL_CONDITION = "rollback_drill_fresh"


@dataclass(frozen=True)
class Request:
    """Everything that the gate looks at.

    asked     the box that is to be served
    drill     see drill_state.drill_context
    code      the identity of the code that would serve
    state     the scope as it is, None: nothing was promoted in it yet
    arms      {"baseline", "candidate"}: sha256 of the two configurations
    """

    plan: dict[str, Any]
    plan_sha256: str
    decision: dict[str, Any]
    scope: str
    asked: dict[str, Any]
    finding: Finding
    drill: dict[str, Any]
    code: Mapping[str, Any]
    arms: Mapping[str, str]
    state: ScopeState | None
    now: datetime.datetime
    override: SignedOverride | None = None
    override_used: bool = False


def refusals(request: Request) -> list[Refusal]:
    """Every reason against it; empty when it may serve."""
    found = [
        refusal
        for check in (_claims, _decided, _replicated, _counterexamples, _expired, _drilled, _inside, _code)
        for refusal in check(request)
    ]
    found += _fits(request)
    if request.override is None:
        return found
    faults = override.faults(request.override, request.plan, request.plan_sha256, request.scope, request.now)
    if request.override_used:
        faults.append(
            Refusal("OVERRIDE_USED", "it was used before", "an override counts once: sign a new one")
        )
    return [*faults, *found] if faults else override.waived(found, request.override)


def _claims(request: Request) -> Iterator[Refusal]:
    if request.plan.get("exploratory") is not False or request.plan.get("calibration") is not False:
        yield Refusal(
            "NO_CLAIM", "an exploratory study or a calibration can claim nothing", "register a study"
        )


def _decided(request: Request) -> Iterator[Refusal]:
    decision = request.decision
    if decision["decision"] == PROMOTE:
        return
    again = f"after new evidence: counterproof report {request.plan['study']}"
    unmet = unmet_conditions(decision)
    if decision["decision"] == HOLD and decision["fired"] == "6 hold" and unmet == [DRILL_CONDITION]:
        # Only the drill was missing: that is one reason with the drill's own, and waivable with it.
        if request.drill.get("passed") is True:
            yield Refusal("NOT_DECIDED", "the decision was made before the rollback drill", again)
        else:
            yield Refusal(override.STALE_DRILL, "the decision is HOLD for want of a rollback drill", again)
        return
    yield Refusal("NOT_DECIDED", f"the decision is {decision['decision']}: {decision['because']}", again)


def unmet_conditions(decision: Mapping[str, Any]) -> list[str]:
    """The conditions of promotion that the decision's trace shows as not met."""
    step = next((one for one in decision["trace"] if one["rule"] == "4 promote"), None)
    return ["no rule of promotion"] if step is None else [k for k, met in step["inputs"].items() if not met]


def _replicated(request: Request) -> Iterator[Refusal]:
    found = request.finding
    if found.verdict != REPLICATED:
        yield Refusal(
            "NOT_REPLICATED",
            f"the verdict is {found.verdict} ({found.reason})",
            "only REPLICATED lets a scope grow: have somebody who took no part replay its packet",
        )


def _counterexamples(request: Request) -> Iterator[Refusal]:
    number = request.finding.open_counterexamples
    if number != 0:
        seen = "nobody searched for counterexamples" if number is None else f"{number} are open"
        yield Refusal(
            "COUNTEREXAMPLES", seen, "search for them, and cut the scope around those that are found"
        )


def _expired(request: Request) -> Iterator[Refusal]:
    expires = request.decision.get("expires_utc")
    if expires is None or moment(expires) <= request.now:
        yield Refusal(
            override.EXPIRED, f"the evidence expired on {expires or 'an unknown date'}", "measure it again"
        )


def _drilled(request: Request) -> Iterator[Refusal]:
    if request.drill.get("passed") is not True:
        reason = str(request.drill.get("reason") or "no rollback drill is recorded")
        yield Refusal(override.STALE_DRILL, reason, f"counterproof drill {request.plan['study']}")


def _inside(request: Request) -> Iterator[Refusal]:
    for line in box.beyond(box.of_scope(request.decision["scope"]), request.asked):
        yield Refusal("BEYOND_SCOPE", line, "ask for what was shown, or show more")


def _code(request: Request) -> Iterator[Refusal]:
    if code_of(request.code) != code_of(request.plan["code"]):
        yield Refusal(
            "OTHER_CODE",
            "the code that would serve is not the code that was measured",
            f"check out {str(request.plan['code'].get('sha'))[:12]}, or measure this code",
        )


def _fits(request: Request) -> Iterator[Refusal]:
    """The evidence compares with one configuration: that one must serve now."""
    if request.state is None:
        return
    serving = request.state.champion(request.now)
    if serving.config_sha256 == request.arms["candidate"]:
        yield Refusal(
            "SERVES_ALREADY", f"it serves {request.scope} since {serving.since_utc}", "nothing to do"
        )
    elif serving.config_sha256 != request.arms["baseline"]:
        yield Refusal(
            "OTHER_BASELINE",
            f"{request.scope} is served by {serving.study}/{serving.arm}, with which it was not compared",
            "measure it against what serves now",
        )
