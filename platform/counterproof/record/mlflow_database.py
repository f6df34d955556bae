"""The store's own MLflow database, made whole or not at all.

MLflow creates its tables one statement after the other and finds a database that has some of them damaged for good. A
harness that is killed meanwhile would leave one; so the tables are made in a file beside it, which then gets its name.
"""

from __future__ import annotations

import os
from pathlib import Path

from counterproof.record.lock import FileLock

LOCK_SECONDS = 120.0


def ensure(path: Path) -> None:
    """Return when `path` is a database with MLflow's tables. Raises ExecutionError when another process makes one too long."""
    if path.is_file():
        return
    with FileLock(path.with_name(f".{path.name}.lock"), wait_s=LOCK_SECONDS, what="the MLflow database"):
        if path.is_file():
            return
        draft = path.with_name(f".{path.name}.new")
        for left in (draft, draft.with_name(f"{draft.name}-journal")):
            left.unlink(missing_ok=True)
        from mlflow import MlflowClient

        # Whatever it asks first makes the tables.
        MlflowClient(tracking_uri=f"sqlite:///{draft}").search_experiments(max_results=1)
        os.replace(draft, path)
