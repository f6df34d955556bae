"""The store's own MLflow database is there whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from counterproof.record.mlflow_view import Tracker
from counterproof.record.store import Store

pytestmark = pytest.mark.timeout(200)

# Dies in the midst of the tables: after so many of them were made.
_DIES = """
import os, sys
from pathlib import Path
import sqlalchemy
from counterproof.record import mlflow_database

made = []

def count(connection, cursor, statement, *_):
    made.append(statement.lstrip().upper().startswith("CREATE TABLE"))
    if sum(made) == 5:
        os._exit(9)

sqlalchemy.event.listen(sqlalchemy.engine.Engine, "after_cursor_execute", count)
mlflow_database.ensure(Path(sys.argv[1]))
"""


def test_a_harness_that_dies_while_the_tables_are_made_leaves_no_half_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = Store(tmp_path / "store").create()
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-c", _DIES, str(store.mlflow_db)]
    assert subprocess.run(command, env=environment, check=False, timeout=100).returncode == 9
    assert not store.mlflow_db.exists()
    assert (store.root / ".mlflow.db.new").is_file()  # it did die in the midst
    client = Tracker.open(store).client()
    assert client.get_experiment_by_name("x") is None
    assert client.create_experiment("x", artifact_location=store.artifacts.as_uri())
    assert store.mlflow_db.is_file()
    assert not (store.root / ".mlflow.db.new").exists()
    assert Tracker.open(store).client().get_experiment_by_name("x") is not None
