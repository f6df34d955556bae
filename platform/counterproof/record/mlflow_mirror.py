"""The MLflow view of a whole store: what is up to date is left alone, so that an interrupted mirror goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from counterproof.record import mlflow_view
from counterproof.record.mlflow_view import Tracker
from counterproof.record.store import Store
from counterproof.record.verify import VerifiedStudy


@dataclass(frozen=True)
class Mirrored:
    """How many studies were written now, and how many were up to date already."""

    written: int
    kept: int


def mirror(
    tracker: Tracker,
    studies: Sequence[VerifiedStudy],
    turn: Callable[[], AbstractContextManager[Any]],
    progress: Callable[[int, int], None] | None = None,
) -> Mirrored:
    """Bring the view of every study up to date.

    turn      held for one study at a time, so that others can write the view in between
    progress  called with (studies looked at, studies in all)

    Whatever interrupts it, a later call writes only what is missing: a study's state is told by its parent run.
    """
    with turn():
        known = _states(tracker)
    written = 0
    for number, study in enumerate(studies, 1):
        if known.get(study.paths.name) != mlflow_view.state_of(study):
            with turn():
                written += mlflow_view.ingest(tracker, study)
        if progress is not None:
            progress(number, len(studies))
    return Mirrored(written, len(studies) - written)


def discard(tracker: Tracker, store: Store) -> None:
    """Throw the store's own database and artifacts away; nothing of a server's.

    To be called in a process that has not used the database yet: MLflow keeps connections to it open.
    """
    if tracker.artifacts is None:
        return
    for path in (store.mlflow_db, *store.root.glob(f"{store.mlflow_db.name}-*")):
        path.unlink(missing_ok=True)
    shutil.rmtree(tracker.artifacts, ignore_errors=True)


def _states(tracker: Tracker) -> dict[str, str]:
    """The state of each study that has exactly one parent run."""
    client = tracker.client()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    parents = mlflow_view.search(client, experiments, "tags.`counterproof.level` = 'study'")
    states: dict[str, str] = {}
    seen: set[str] = set()
    for run in parents:
        tags = run.data.tags
        name = tags["counterproof.study"]
        if name in seen:
            states.pop(name, None)
        elif "counterproof.state" in tags:
            states[name] = tags["counterproof.state"]
        seen.add(name)
    return states
