"""A tracking server on PostgreSQL: one variable is all it takes, and when it is away nothing is lost."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof.measure.compare import primary_key
from counterproof.record import journal, mlflow_view, views
from counterproof.record.mlflow_view import VARIABLE, Tracker
from counterproof.record.store import StudyPaths, open_store
from counterproof.record.verify import verify_study
from counterproof.run import judge

SUPPORT = Path(__file__).resolve().parents[2] / "support"
pytestmark = [pytest.mark.timeout(280), pytest.mark.slow]


def support() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "counterproof_tests_postgres", SUPPORT / "postgres_server.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def servers() -> ModuleType:
    """The module that starts them; a skip where PostgreSQL or its client library is not installed."""
    module = support()
    missing = [name for name in ("psycopg2",) if importlib.util.find_spec(name) is None]
    if module.programs() is None:
        missing.append("PostgreSQL's programs (Debian's package postgresql)")
    if missing and os.environ.get("COUNTERPROOF_NEEDS_POSTGRES"):
        pytest.fail(f"not installed: {', '.join(missing)}")
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    return module


@pytest.fixture(scope="module")
def database(servers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.postgres(tmp_path_factory.mktemp("postgres")) as address:
        yield address


def count(database: str, query: str) -> int:
    """One number from PostgreSQL itself, past MLflow."""
    import psycopg2

    connection = psycopg2.connect(database, connect_timeout=10)
    try:
        with connection.cursor() as cursor:
            cursor.execute(query)
            (number,) = cursor.fetchone() or (0,)
            return int(number)
    finally:
        connection.close()


def run_study(name: str) -> subprocess.CompletedProcess[str]:
    """A whole study by the command line, in a process that knows of the server by the variable alone."""
    arguments = ["--cli", "run", "short", "--exploratory", "--study", name, "study.blocks=1"]
    return subprocess.run(
        [sys.executable, str(SUPPORT / "harness_driver.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_variable_alone_sends_a_study_to_postgresql_and_an_outage_loses_nothing(
    servers: ModuleType,
    database: str,
    store: Path,
    new_study: Callable[..., StudyPaths],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = servers.free_port()
    monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{port}")
    with servers.mlflow_server(tmp_path, database, port):
        done = run_study("tracked")
        assert "view was not updated" not in done.stderr, done.stderr
        _check_tracked(database)
        # The store's own database was not made: everything went to the server.
        assert not open_store().mlflow_db.exists()

    # The server is gone. The study is measured, sealed and judged all the same, and says what it could not do.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    alone = run_study("alone")
    assert alone.returncode == done.returncode, alone.stderr
    assert "the MLflow view was not updated" in alone.stderr
    paths = open_store().study("alone")
    study = verify_study(paths.folder)
    assert len(study.runs) == len(verify_study(open_store().study("tracked").folder).runs)
    assert [e["view"] for e in study.journal if e["kind"] == "view_failed"] == ["MLflow"]
    assert paths.decision.is_file()

    # It comes back: only what is missing is written.
    before = count(database, "select count(*) from runs")
    with servers.mlflow_server(tmp_path, database, port):
        rebuilt = views.rebuild(open_store())
        assert "2 studies (1 written now)" in rebuilt.mlflow, rebuilt.mlflow
        tracker = Tracker.open(open_store())
        assert mlflow_view.ingest(tracker, study) is False
    assert count(database, "select count(*) from runs") == before + 1 + len(study.runs)


def _check_tracked(database: str) -> None:
    study = verify_study(open_store().study("tracked").folder)
    assert not [e for e in journal.read(study.paths.journal).events if e["kind"] == "view_failed"]
    client = Tracker.open(open_store()).client()
    experiment = client.get_experiment_by_name("short")
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    by_name: dict[str, Any] = {run.info.run_name: run for run in runs}
    assert set(by_name) == {"tracked", *(f"tracked/{run.folder.name}" for run in study.runs)}
    baseline, candidate = (by_name[f"tracked/00-{arm}-1"].data for arm in ("baseline", "candidate"))
    assert baseline.params["engine.kv_cache.enabled"] == "false"
    assert candidate.params["engine.kv_cache.enabled"] == "true"
    comparison = judge.evaluate(study.paths).comparison
    entry = comparison["metrics"][primary_key(study.plan)]
    expected = entry["arms"]["baseline"]["per_block"][0]
    assert baseline.metrics["tpot_ms/mean"] == pytest.approx(expected, rel=1e-12)
    listed = {item.path for item in client.list_artifacts(by_name["tracked/00-baseline-1"].info.run_id)}
    assert {"tokens.parquet", "manifest.json"} <= listed
    assert count(database, "select count(*) from runs") == 1 + len(study.runs)
    assert count(database, "select count(*) from metrics where key = 'tpot_ms/mean'") == 4
    assert count(database, "select count(*) from params") == sum(len(run.data.params) for run in runs) > 0
