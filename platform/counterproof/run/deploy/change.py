"""Changing what serves: promote, roll back, write down an end. Each checks and writes under one lock."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.decide.deploy import box, entries, gate, reviewer
from counterproof.decide.deploy.drill_state import drill_context
from counterproof.decide.deploy.refusal import DeploymentRefusedError
from counterproof.errors import InputError, SetupError, did_you_mean
from counterproof.record import canonical, code_identity
from counterproof.record.deployment_ledger import (
    EXPIRED,
    OVERRIDE,
    PROMOTED,
    ROLLED_BACK,
    DeploymentLedger,
    bear_witness,
    check_witnesses,
)
from counterproof.record.deployment_state import ScopeState, fold
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import verify_study
from intaglio.config import from_flat

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Promotion:
    """What is asked for. `limits`: fields of the scope that are to be narrower than shown; `override`: a signed file."""

    study: str
    scope: str | None = None
    limits: dict[str, Any] | None = None
    override: Path | None = None


def promote(store: Store, asked: Promotion) -> dict[str, Any]:
    """Let the study's candidate serve a scope. Returns the ledger's entry.

    Raises DeploymentRefusedError with every reason, EvidenceError for a study or a ledger that was tampered with,
    InputError, ConfigError; then nothing was changed.
    """
    paths = store.study(asked.study)
    study = verify_study(paths.folder)
    if not paths.decision.is_file():
        raise InputError(
            f"{paths.name} has no decision yet", details=[f"to make one: counterproof report {paths.name}"]
        )
    plan, decision = study.plan, canonical.read_json(paths.decision)
    scope = check_name(asked.scope or str(plan["experiment"]))
    signed = None if asked.override is None else _read_override(store, asked.override)
    finding = reviewer.finding_of(paths.folder)
    code = code_identity.identify().as_dict()
    arms = entries.both_configs(plan)
    for config in arms.values():
        from_flat(config)
    ledger = DeploymentLedger(store.root)
    with ledger.changing():
        events = ledger.read()
        check_witnesses(store, events)
        now = datetime.datetime.now(datetime.UTC)
        shown = box.narrowed(box.of_scope(decision["scope"]), asked.limits or {})
        request = gate.Request(
            plan=plan,
            plan_sha256=study.plan_sha256,
            decision=decision,
            scope=scope,
            asked=shown,
            finding=finding,
            drill=drill_context(events, plan, study.plan_sha256, now),
            code=code,
            arms={name: canonical.sha256_json(config) for name, config in arms.items()},
            state=fold(events).get(scope),
            now=now,
            override=signed,
            override_used=signed is not None and _used(events, signed),
        )
        if found := gate.refusals(request):
            raise DeploymentRefusedError(f"promoting {paths.name} to {scope}", found)
        if signed is not None:
            _record_override(ledger, paths, signed)
        fields = entries.promotion(
            plan,
            study.plan_sha256,
            scope,
            shown,
            now=now,
            decision_sha256=canonical.sha256_file(paths.decision),
            evidence_expires_utc=decision["expires_utc"],
            ends_utc=None if signed is None else signed.expires_utc,
            override_sha256=None if signed is None else signed.sha256,
        )
        event = ledger.append(PROMOTED, verdict_sha256=finding.sha256, code=code, **fields)
        bear_witness(paths, event)
    return event


def roll_back(store: Store, scope: str, reason: str) -> dict[str, Any]:
    """Let what served before serve again. Needs no study, no review and no decision: going back is never refused
    for want of evidence. Returns the ledger's entry. Raises InputError, DeploymentRefusedError, EvidenceError."""
    ledger = DeploymentLedger(store.root)
    with ledger.changing():
        events = ledger.read()
        now = datetime.datetime.now(datetime.UTC)
        state = scope_state(fold(events), scope)
        event = ledger.append(ROLLED_BACK, **entries.rollback(state, reason, now))
        _witness(store, event)
    return event


def write_ends(store: Store, scope: str) -> list[dict[str, Any]]:
    """Write down every override of the scope whose time is over. Returns the entries."""
    ledger = DeploymentLedger(store.root)
    with ledger.changing():
        now = datetime.datetime.now(datetime.UTC)
        state = fold(ledger.read()).get(scope)
        over = () if state is None else state.overdue(now)
        events = [ledger.append(EXPIRED, **entries.ended(served, now)) for served in over]
        for event in events:
            _witness(store, event)
    return events


def check_name(scope: str) -> str:
    """A scope's name, which also names files. Raises InputError."""
    if not _NAME.fullmatch(scope):
        raise InputError(
            f"'{scope}' cannot name a scope",
            details=["use lower-case letters, digits, '.', '_' and '-', at most 100 of them"],
        )
    return scope


def scope_state(scopes: dict[str, ScopeState], scope: str) -> ScopeState:
    """A scope that something was promoted in. Raises InputError that lists what there is."""
    if scope not in scopes:
        known = ", ".join(sorted(scopes)) or "none"
        raise InputError(
            f"nothing was ever promoted in the scope '{scope}'",
            details=[*did_you_mean(scope, scopes), f"scopes: {known}"],
        )
    return scopes[scope]


def _used(events: tuple[dict[str, Any], ...], signed: reviewer.SignedOverride) -> bool:
    return any(e["kind"] == OVERRIDE and e["override_sha256"] == signed.sha256 for e in events)


def _read_override(store: Store, file: Path) -> reviewer.SignedOverride:
    found = reviewer.installed()
    if found is None:
        raise SetupError(
            "no package that checks signatures is installed, so an override counts for nothing",
            details=["install the review package, or do without --override"],
        )
    return found.override(store.root, file)


def _record_override(ledger: DeploymentLedger, paths: StudyPaths, signed: reviewer.SignedOverride) -> None:
    event = ledger.append(
        OVERRIDE,
        scope=signed.scope,
        study=signed.study,
        plan_sha256=signed.plan_sha256,
        waives=list(signed.waives),
        reason=signed.reason,
        signers=list(signed.signers),
        ends_utc=signed.expires_utc,
        override_sha256=signed.sha256,
    )
    bear_witness(paths, event)


def _witness(store: Store, event: dict[str, Any]) -> None:
    """The study may have been deleted since; going back does not depend on it."""
    paths = store.new_study(event["study"])
    if paths.journal.is_file():
        bear_witness(paths, event)
