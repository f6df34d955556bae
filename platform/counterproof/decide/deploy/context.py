"""What the decision rule is told beyond plan and comparison: replication, counterexamples, drill, what serves.

Read from the store's ledger of deployments and from the installed reviewer. What cannot be read counts as absent, with
the reason in it; absence never helps a candidate.
"""

from __future__ import annotations

from typing import Any

from counterproof.decide.deploy.drill_state import drill_context
from counterproof.decide.deploy.reviewer import Finding, finding_of
from counterproof.errors import CounterproofError, EvidenceError
from counterproof.record.deployment_ledger import DeploymentLedger
from counterproof.record.deployment_state import Served, fold, moment
from counterproof.record.store import StudyPaths

UNREADABLE = "UNADJUDICABLE"


def context_of(paths: StudyPaths, plan: dict[str, Any], plan_sha256: str, now_utc: str) -> dict[str, Any]:
    """The context that `rule.decide` takes, but for the times. Never raises for what is in ledger or review."""
    finding = _finding(paths)
    return {
        "replication": {"verdict": finding.verdict, "reason": finding.reason, "sha256": finding.sha256},
        "counterexamples": {"open": finding.open_counterexamples},
        **_deployed(paths, plan, plan_sha256, now_utc),
    }


def _finding(paths: StudyPaths) -> Finding:
    try:
        return finding_of(paths.folder)
    except CounterproofError as error:
        return Finding(UNREADABLE, f"the review cannot be believed: {error}")


def _deployed(paths: StudyPaths, plan: dict[str, Any], plan_sha256: str, now_utc: str) -> dict[str, Any]:
    now = moment(now_utc)
    try:
        events = DeploymentLedger(paths.folder.parent.parent).read()
        scopes = fold(events)
        drill = drill_context(events, plan, plan_sha256, now)
    except EvidenceError as error:
        return {
            "drill": {"passed": False, "reason": f"the ledger cannot be believed: {error}"},
            "serving": None,
        }
    serving = sorted(name for name, state in scopes.items() if _serves(state.champion(now), paths.name))
    return {"drill": drill, "serving": bool(serving), "scopes": serving}


def _serves(champion: Served, study: str) -> bool:
    return champion.study == study and champion.arm == "candidate"
