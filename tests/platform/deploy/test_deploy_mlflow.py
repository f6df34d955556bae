"""MLflow's aliases say what the ledger says, and are made again from it alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from counterproof.run.deploy import change
from counterproof.run.deploy.change import Promotion

pytestmark = pytest.mark.timeout(180)

STUDY = "20260102-030405-kv_cache"
# In a process of its own, since MLflow keeps databases open that a rebuild replaces.
_ALIASES = (
    "import json\n"
    "from counterproof.record import mlflow_deployments, mlflow_view, store\n"
    "tracker = mlflow_view.Tracker.open(store.open_store())\n"
    "print(json.dumps(mlflow_deployments.aliases(tracker, 'kv_cache')))\n"
)


def run(shelf: Any, *arguments: str) -> str:
    environment = {**os.environ, "COUNTERPROOF_STORE": str(shelf.store.root)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def aliases(shelf: Any) -> dict[str, tuple[str, str]]:
    found = json.loads(run(shelf, "-c", _ALIASES))
    return {
        alias: (tags["counterproof.study"], tags["counterproof.arm"]) for alias, tags in sorted(found.items())
    }


def test_champion_and_previous_mirror_the_ledger_and_survive_a_rebuild(promotable: Any) -> None:
    event = change.promote(promotable.store, Promotion(STUDY))
    run(promotable, "-m", "counterproof", "index", "rebuild")
    served = {"champion": (STUDY, "candidate"), "previous": (STUDY, "baseline")}
    assert aliases(promotable) == served
    promotable.store.mlflow_db.unlink()
    said = run(promotable, "-m", "counterproof", "index", "rebuild")
    assert "1 scopes" in said
    assert aliases(promotable) == served
    assert promotable.ledger.read()[-1]["hash"] == event["hash"]  # a view writes nothing
    back = run(promotable, "-m", "counterproof", "rollback", "kv_cache")
    assert f"{STUDY}/baseline serves again" in back
    assert aliases(promotable) == {"champion": (STUDY, "baseline")}
