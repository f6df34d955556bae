"""The views over the records, DuckDB and MLflow: one writer at a time, and never a source of truth.

A view that cannot be written costs a warning and a journal event, never a study.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from counterproof.errors import CounterproofError, EvidenceError
from counterproof.record import duckdb_view, mlflow_deployments, mlflow_view
from counterproof.record.journal import Journal
from counterproof.record.lock import FileLock
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import VerifiedStudy, verify_study

LOCK_SECONDS = 120.0


@dataclass(frozen=True)
class Rebuilt:
    """Studies that were indexed, those refused with the reason, and how MLflow went."""

    studies: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    mlflow: str


def refresh(store: Store, paths: StudyPaths) -> list[str]:
    """Bring both views up to date for one study. Returns what went wrong, also journalled; never raises for a
    view. Raises EvidenceError when the study itself was tampered with."""
    study = verify_study(paths.folder)
    problems = []
    for name, update in (("DuckDB", _update_duckdb), ("MLflow", _update_mlflow)):
        try:
            with _lock(store):
                update(store, study)
        except Exception as error:
            # The tracker may be unreachable or broken in any way; the records are safe without it.
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            Journal(paths.journal).append("view_failed", view=name, reason=reason)
            problems.append(f"the {name} view was not updated ({reason}); later: counterproof index rebuild")
    return problems


def rebuild(store: Store) -> Rebuilt:
    """Make both views anew from the study folders. A study that fails verification is left out and named."""
    store.create()
    studies, refused = _verified(store)
    with _lock(store):
        duckdb_view.rebuild(store.index, studies)
        tracker = mlflow_view.Tracker.open(store)
        try:
            mlflow_view.rebuild(tracker, store, studies)
            scopes = mlflow_deployments.mirror(tracker, store)
            outcome = f"{len(studies)} studies and {len(scopes)} scopes in {tracker.uri}"
        except Exception as error:
            # As above: an unreachable tracker must not keep the DuckDB view from being rebuilt.
            outcome = f"not rebuilt: {type(error).__name__}: {error}"
    return Rebuilt(tuple(study.paths.name for study in studies), tuple(refused), outcome)


def refresh_deployments(store: Store) -> list[str]:
    """Mirror the ledger of deployments in MLflow. Returns what went wrong; never raises for the view."""
    try:
        with _lock(store):
            mlflow_deployments.mirror(mlflow_view.Tracker.open(store), store)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return [f"MLflow does not show the change yet ({reason}); later: counterproof index rebuild"]
    return []


def _verified(store: Store) -> tuple[list[VerifiedStudy], list[tuple[str, str]]]:
    studies, refused = [], []
    for folder in store.study_folders():
        try:
            studies.append(verify_study(folder))
        except EvidenceError as error:
            refused.append((folder.name, str(error)))
        except (CounterproofError, LookupError, TypeError, ValueError, AttributeError) as error:
            refused.append((folder.name, f"its files do not have the expected form: {error!r}"))
    return studies, refused


def _lock(store: Store) -> FileLock:
    return FileLock(Path(store.views_lock), wait_s=LOCK_SECONDS, what="the views")


def _update_duckdb(store: Store, study: VerifiedStudy) -> None:
    duckdb_view.update(store.index, study)


def _update_mlflow(store: Store, study: VerifiedStudy) -> None:
    mlflow_view.ingest(mlflow_view.Tracker.open(store), study)
