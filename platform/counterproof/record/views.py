"""The views over the records, DuckDB and MLflow: one writer at a time, and never a source of truth.

A view that cannot be written costs a warning and a journal event, never a study.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from counterproof.record import duckdb_view, mlflow_deployments, mlflow_mirror, mlflow_view
from counterproof.record.duckdb_parts import Part
from counterproof.record.journal import Journal
from counterproof.record.lock import FileLock
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import VerifiedStudy, verify_study
from counterproof.record.verify_many import read_all

LOCK_SECONDS = 120.0

# Called with the view's name, the studies done and the studies in all.
Progress = Callable[[str, int, int], None]


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


def rebuild(store: Store, *, anew: bool = False, progress: Progress | None = None) -> Rebuilt:
    """Make the DuckDB view anew from the study folders and bring MLflow up to date with them. A study that fails
    verification is left out and named.

    anew  throw the store's own MLflow database away first (a server's stays)
    """
    tell = progress or _say_nothing
    studies, refused = rebuild_duckdb(store, tell)
    tracker = mlflow_view.Tracker.open(store)
    try:
        if anew:
            with _lock(store):
                mlflow_mirror.discard(tracker, store)
        done = mlflow_mirror.mirror(
            tracker, studies, lambda: _lock(store), lambda count, total: tell("MLflow", count, total)
        )
        with _lock(store):
            scopes = mlflow_deployments.mirror(tracker, store)
        outcome = (
            f"{len(studies)} studies ({done.written} written now) and {len(scopes)} scopes in {tracker.uri}"
        )
    except Exception as error:
        # As above: an unreachable tracker must not keep the DuckDB view from being rebuilt.
        outcome = f"not rebuilt: {type(error).__name__}: {error}"
    return Rebuilt(tuple(study.paths.name for study in studies), tuple(refused), outcome)


def rebuild_duckdb(
    store: Store, progress: Progress | None = None
) -> tuple[list[VerifiedStudy], list[tuple[str, str]]]:
    """Make the DuckDB view alone anew. Returns the studies in it, and those refused with the reason."""
    store.create()
    studies: list[VerifiedStudy] = []
    refused: list[tuple[str, str]] = []
    with _lock(store):
        duckdb_view.rebuild_from(store.index, _parts(store, studies, refused, progress or _say_nothing))
    return studies, refused


def refresh_deployments(store: Store) -> list[str]:
    """Mirror the ledger of deployments in MLflow. Returns what went wrong; never raises for the view."""
    try:
        with _lock(store):
            mlflow_deployments.mirror(mlflow_view.Tracker.open(store), store)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return [f"MLflow does not show the change yet ({reason}); later: counterproof index rebuild"]
    return []


def _parts(
    store: Store, studies: list[VerifiedStudy], refused: list[tuple[str, str]], tell: Progress
) -> Iterator[Part]:
    """What the view holds of every study that verifies, which is also put into `studies`; the others go into
    `refused`, with the reason."""
    folders = store.study_folders()
    number = 0
    for batch in read_all(folders):
        yield batch.part
        for name, found in batch.outcomes:
            if isinstance(found, str):
                refused.append((name, found))
            else:
                studies.append(found)
            number += 1
            tell("DuckDB", number, len(folders))


def _say_nothing(_view: str, _done: int, _total: int) -> None:
    return None


def _lock(store: Store) -> FileLock:
    return FileLock(Path(store.views_lock), wait_s=LOCK_SECONDS, what="the views")


def _update_duckdb(store: Store, study: VerifiedStudy) -> None:
    duckdb_view.update(store.index, study)


def _update_mlflow(store: Store, study: VerifiedStudy) -> None:
    mlflow_view.ingest(mlflow_view.Tracker.open(store), study)
