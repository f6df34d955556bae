"""A study's decision and what became of it: rows of the rule's trace, triggers, drills, and what serves which scope.

The ledger of deployments is read and verified like any record; one that cannot be believed gives its reason and no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from counterproof.errors import EvidenceError
from counterproof.record.deployment_ledger import DeploymentLedger, check_witnesses
from counterproof.record.deployment_state import Served, drills, fold
from counterproof.record.store import Store
from counterproof_dashboard import findings
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import NOT_RECORDED, age, day, number, significant, spelled, visible, when

NOTHING = "–"
MARKS = {True: "✓", False: "✗"}
Row = dict[str, str]


@dataclass(frozen=True)
class Ledger:
    """The ledger's entries; `problem` says why it is not believed, "" when it is."""

    events: tuple[dict[str, Any], ...] = ()
    problem: str = ""


def ledger(store: Store) -> Ledger:
    """The store's ledger of deployments, verified."""
    try:
        events = DeploymentLedger(store.root).read()
        check_witnesses(store, events)
        fold(events)
    except EvidenceError as error:
        return Ledger(problem="; ".join([str(error), *error.details]))
    except OSError as error:
        return Ledger(problem=f"the ledger cannot be read: {error.strerror}")
    return Ledger(events)


def _yes_no(value: bool | None) -> str:
    return NOT_RECORDED if value is None else ("yes" if value else "no")


def _mark(value: bool | None) -> str:
    return NOT_RECORDED if value is None else MARKS[value]


def trace(study: Study) -> list[Row]:
    """The rules in order: which matched, which one decided, and why."""
    fired = study.decision.get("fired")
    return [
        {
            "Rule": findings.text(step.get("rule")),
            "Matches": _yes_no(findings.flag(step.get("fired"))),
            "Decision": findings.text(step.get("decision"))
            + (" ← decided" if step.get("rule") == fired else ""),
            "Because": findings.text(step.get("because")),
        }
        for step in findings.rows(study.decision.get("trace"))
    ]


def conditions(study: Study) -> list[Row]:
    """What promotion asks for, and whether it is met."""
    for step in findings.rows(study.decision.get("trace")):
        inputs = step.get("inputs")
        if findings.text(step.get("rule")).startswith("4") and isinstance(inputs, dict):
            return [
                {
                    "Condition": name.replace("_", " "),
                    "Met": _mark(findings.flag(met)),
                }
                for name, met in inputs.items()
            ]
    return []


def triggers(study: Study) -> list[Row]:
    """What to watch while it serves, and what to do then."""
    stop = findings.get(study.decision, "answers", "stop_and_rollback")
    return [
        {
            "Stop and go back when": findings.text(row.get("condition")),
            "Over": findings.text(row.get("window")),
            "Then": findings.text(row.get("action")),
        }
        for row in findings.rows(findings.get(stop, "triggers"))
    ]


def commands(study: Study) -> list[str]:
    """What to type: go back, look, drill, promote; those that the decision has."""
    stop = findings.get(study.decision, "answers", "stop_and_rollback")
    names = ("command", "state_command", "drill_command", "promote_command")
    return [visible(found) for name in names if (found := findings.text(findings.get(stop, name)))]


def drill_rows(found: Ledger, study: str, now: datetime) -> list[Row]:
    """Every drill of the study, newest first."""
    return [
        {
            "Drilled": f"{day(event['time_utc'])} ({age(when(event['time_utc']), now)})",
            "Result": "✓\u00a0passed" if event.get("passed") is True else "✗\u00a0failed",
            "Back after": seconds(event.get("seconds")),
            "Last answer after": seconds(event.get("drained_seconds")),
            "Requests": f"{event.get('requests', NOT_RECORDED)}, {event.get('failed', NOT_RECORDED)} failed",
            "Latency": findings.text(event.get("latency")),
            "Why": findings.text(event.get("reason")),
        }
        for event in reversed(drills(found.events, study))
    ]


def serving(found: Ledger, now: datetime, study: str | None = None) -> list[Row]:
    """Champion and previous of every scope, or of those in which `study` serves or served."""
    rows = []
    for name, state in sorted(fold(found.events).items()):
        if study is not None and not _takes_part(found.events, name, study):
            continue
        roles = (("champion", state.champion(now)), ("previous", state.previous(now)))
        rows += [_served(role, served, now) for role, served in roles if served is not None]
    return rows


def history(found: Ledger, study: str) -> list[Row]:
    """Every entry of the ledger about the study, newest first."""
    return [
        {
            "Time": day(event["time_utc"]),
            "What": event["kind"].replace("_", " "),
            "Scope": findings.text(event.get("scope")) or NOTHING,
            "Remark": _remark(event),
            "Entry": str(event["seq"]),
        }
        for event in reversed(found.events)
        if event.get("study") == study
    ]


def seconds(value: object) -> str:
    """A duration in seconds."""
    found = number(value)
    return NOT_RECORDED if found is None else f"{significant(found)} s"


def _served(role: str, served: Served, now: datetime) -> Row:
    until = when(served.evidence_expires_utc)
    return {
        "Scope": served.scope,
        "": role,
        "Study": f"{served.study}/{served.arm}",
        "Since": day(served.since_utc),
        "Evidence until": NOTHING
        if until is None
        else f"{until:%Y-%m-%d}{' (expired)' if until <= now else ''}",
        "Ends": NOTHING if served.ends_utc is None else day(served.ends_utc),
        "Where it holds": ", ".join(
            f"{key} {spelled(value)}" for key, value in sorted(served.box.items()) if _told(key, value)
        ),
    }


def _told(key: str, value: object) -> bool:
    return key not in ("model_sha256", "hardware") and value is not None


def _takes_part(events: tuple[Mapping[str, Any], ...], scope: str, study: str) -> bool:
    return any(event.get("scope") == scope and event.get("study") == study for event in events)


def _remark(event: Mapping[str, Any]) -> str:
    if event["kind"] == "override":
        signers = ", ".join(map(str, event.get("signers") or ()))
        return f"{findings.text(event.get('reason'))} (signed by {signers})"
    return findings.text(event.get("reason")) or NOTHING
