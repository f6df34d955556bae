"""Several harnesses on one store at once, from a store that does not exist yet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pytest

from counterproof.record import duckdb_view, mlflow_view, views
from counterproof.record.mlflow_view import Tracker
from counterproof.record.store import StudyPaths, open_store
from counterproof.record.verify import verify_study

DRIVER = Path(__file__).resolve().parents[2] / "support" / "store_driver.py"
PROCESSES = 6
pytestmark = [pytest.mark.timeout(280), pytest.mark.slow]


@pytest.fixture
def start(
    new_study: Callable[..., StudyPaths], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """`start(study)` starts a driver; whatever is left of them is killed."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with ExitStack() as stack:

        def run(study: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, str(DRIVER), study],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield run


def test_six_processes_register_seal_and_refresh_a_fresh_store_at_once(
    start: Callable[[str], subprocess.Popen[str]],
) -> None:
    store = open_store()
    assert not store.mlflow_db.exists()
    names = [f"parallel-{number}" for number in range(PROCESSES)]
    processes = [start(name) for name in names]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
    # All of them now reach for a tracking database that nobody has made.
    assert not store.mlflow_db.exists()
    answers: list[dict[str, Any]] = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        out, _ = process.communicate(timeout=240)
        assert process.returncode == 0
        answers.append(json.loads(out))
    assert [answer["problems"] for answer in answers] == [[]] * PROCESSES
    assert sum(answer["got"] for answer in answers) == 1
    for name in names:
        study = verify_study(store.study(name).folder)
        assert [run.folder.name for run in study.runs] == ["00-baseline-1"]
        assert not [event for event in study.journal if event["kind"] == "view_failed"]
    with duckdb.connect(str(store.index), read_only=True) as connection:
        assert connection.execute("select study, run from runs order by study").fetchall() == [
            (name, "00-baseline-1") for name in names
        ]
    tracker = Tracker.open(store)
    client = tracker.client()
    experiment = client.get_experiment_by_name("short").experiment_id
    runs = client.search_runs([experiment], max_results=100)
    assert sorted(run.info.run_name for run in runs) == sorted(
        [*names, *(f"{name}/00-baseline-1" for name in names)]
    )
    # The database is sound for whoever comes later, and nothing has to be written again but the one never run.
    before = duckdb_view.content_digest(store.index)
    assert "7 studies (1 written now)" in views.rebuild(store).mlflow
    after = duckdb_view.content_digest(store.index)
    assert {name: before[name] == after[name] for name in ("runs", "tokens", "metrics")} == {
        "runs": True,
        "tokens": True,
        "metrics": True,
    }
    assert mlflow_view.ingest(tracker, verify_study(store.study(names[0]).folder)) is False
