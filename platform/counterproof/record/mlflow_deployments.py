"""The ledger of deployments in MLflow: one registered model a scope, a version for each configuration that served, and
the aliases `champion` and `previous`. A view: thrown away and made again from the ledger alone.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from counterproof.record.deployment_ledger import PROMOTED, DeploymentLedger
from counterproof.record.deployment_state import ScopeState, Served, fold
from counterproof.record.mlflow_view import Tracker
from counterproof.record.store import Store

PREFIX = "counterproof."
CHAMPION, PREVIOUS = "champion", "previous"
SEQ = "counterproof.ledger_seq"


def mirror(tracker: Tracker, store: Store) -> list[str]:
    """Bring models, versions and aliases to what the ledger says now. Returns the names of the scopes.

    Raises EvidenceError for a ledger that cannot be believed, and whatever MLflow raises.
    """
    events = DeploymentLedger(store.root).read()
    scopes = fold(events)
    if not scopes:
        return []
    client = tracker.client()
    now = datetime.datetime.now(datetime.UTC)
    for name, state in scopes.items():
        model = f"{PREFIX}{name}"
        _model(client, model, f"What serves the scope {name}: a mirror of deployments.jsonl.")
        known = _versions(client, model)
        ever = {served.seq: served for served in _ever(events, name, state)}
        for key, served in ever.items():
            if key not in known:
                known[key] = _version(client, tracker, model, served)
        _aliases(client, model, known, state, now)
    return sorted(scopes)


def aliases(tracker: Tracker, scope: str) -> dict[str, dict[str, str]]:
    """The tags of the version behind each alias of a scope."""
    client = tracker.client()
    model = client.get_registered_model(f"{PREFIX}{scope}")
    return {
        alias: dict(client.get_model_version(model.name, version).tags)
        for alias, version in model.aliases.items()
    }


def _model(client: Any, name: str, description: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.get_registered_model(name)
    except MlflowException:
        client.create_registered_model(name, description=description)


def _versions(client: Any, model: str) -> dict[int, str]:
    """Version numbers by ledger entry."""
    found = client.search_model_versions(f"name='{model}'")
    return {int(v.tags[SEQ]): str(v.version) for v in found if SEQ in v.tags}


def _ever(events: tuple[dict[str, Any], ...], scope: str, state: ScopeState) -> Iterator[Served]:
    """The baseline (as entry -1), then everything that was ever promoted, also what was taken back."""
    base = state.baseline
    yield Served(scope, -1, base.study, base.arm, base.config, base.config_sha256, base.box, base.since_utc)
    for event in events:
        if event["kind"] == PROMOTED and event["scope"] == scope:
            yield Served(
                scope,
                event["seq"],
                event["study"],
                "candidate",
                event["config"],
                event["config_sha256"],
                event["box"],
                event["time_utc"],
            )


def _version(client: Any, tracker: Tracker, model: str, served: Served) -> str:
    tags = {
        SEQ: str(served.seq),
        "counterproof.study": served.study,
        "counterproof.arm": served.arm,
        "counterproof.config_sha256": served.config_sha256,
        "counterproof.since": served.since_utc,
    }
    run = _run_of(client, served.study)
    # A local store accepts only a source inside the run's own artifacts; a version without a run needs any address.
    source = _fallback(tracker, served) if run is None else str(run.info.artifact_uri)
    made = client.create_model_version(
        model, source, run_id=None if run is None else run.info.run_id, tags=tags
    )
    return str(made.version)


def _run_of(client: Any, study: str) -> Any | None:
    """The study's parent run, if the view holds it."""
    experiments = [e.experiment_id for e in client.search_experiments()]
    where = f"tags.`counterproof.study` = '{study}' and tags.`counterproof.level` = 'study'"
    found = client.search_runs(experiments, where, max_results=1)
    return found[0] if found else None


def _fallback(tracker: Tracker, served: Served) -> str:
    base = Path("/") if tracker.artifacts is None else tracker.artifacts
    return f"counterproof:{base.name}/{served.study}/{served.arm}"


def _aliases(
    client: Any, model: str, known: dict[int, str], state: ScopeState, now: datetime.datetime
) -> None:
    previous = state.previous(now)
    wanted = {CHAMPION: _key(state.champion(now))}
    if previous is not None:
        wanted[PREVIOUS] = _key(previous)
    for alias, key in wanted.items():
        client.set_registered_model_alias(model, alias, known[key])
    if previous is None and PREVIOUS in client.get_registered_model(model).aliases:
        client.delete_registered_model_alias(model, PREVIOUS)


def _key(served: Served) -> int:
    return -1 if served.arm == "baseline" else served.seq
