"""DuckDB and MLflow are views: complete, honest about what is missing, idempotent, and rebuilt equal from the folders."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest

from counterproof.record import duckdb_view, journal, mlflow_mirror, mlflow_view, views
from counterproof.record.journal import Journal
from counterproof.record.lock import FileLock
from counterproof.record.mlflow_view import Tracker
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import verify_study
from counterproof.run import judge

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, synthetic: ModuleType) -> Iterator[Store]:
    """A store with two judged studies, both indexed. MLflow's database takes seconds to create, so it is shared."""
    patch = pytest.MonkeyPatch()
    patch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = Store(tmp_path_factory.mktemp("views"))
    synthetic.build(store.root, synthetic.StudyModel(study="first", killed=((0, "again"),)))
    # Half a study of failures: many values that cannot be had.
    synthetic.build(store.root, synthetic.StudyModel(study="second", blocks=1, all_fail=True, seed=8))
    for name in ("first", "second"):
        paths = store.study(name)
        judge.judge(paths)
        assert views.refresh(store, paths) == []
    yield store
    patch.undo()


def rows(store: Store, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(store.index), read_only=True) as connection:
        return connection.execute(query).fetchall()


def test_duckdb_holds_every_row_of_every_record(shelf: Store) -> None:
    study = verify_study(shelf.study("first").folder)
    counted = dict(rows(shelf, "select study, count(*) from runs group by study"))
    assert counted == {
        "first": len(study.runs),
        "second": len(verify_study(shelf.study("second").folder).runs),
    }
    per_table = {
        name: rows(
            shelf, f"select count(*) from read_parquet('{shelf.root}/studies/*/runs/*/{name}.parquet')"
        )[0][0]
        for name in ("requests", "tokens", "stages", "resources")
    }
    # The killed attempt has no tables: only sealed records are counted.
    assert per_table == {name: rows(shelf, f"select count(*) from {name}")[0][0] for name in per_table}
    assert rows(shelf, "select run, kind from attempts") == [("00-again-1", "run_lost")]
    assert rows(shelf, "select study, decision is not null from studies order by study") == [
        ("first", True),
        ("second", True),
    ]
    medians = rows(
        shelf,
        "select count(*) from metrics where study = 'first' and metric = 'tpot_ms' and statistic = 'p50' and value is not null",
    )
    assert medians == [(24,)]


def test_what_cannot_be_had_is_null_with_a_reason(shelf: Store) -> None:
    missing = rows(shelf, "select value, reason from metrics where study = 'second' and metric = 'tpot_ms'")
    assert missing
    assert all(value is None and reason for value, reason in missing)


def test_updating_again_changes_nothing(shelf: Store) -> None:
    before = duckdb_view.content_digest(shelf.index)
    study = verify_study(shelf.study("first").folder)
    duckdb_view.update(shelf.index, study)
    assert duckdb_view.content_digest(shelf.index) == before
    tracker = Tracker.open(shelf)
    digest = mlflow_view.content_digest(tracker)
    assert mlflow_view.ingest(tracker, study) is False
    assert mlflow_view.content_digest(tracker) == digest


def test_readers_keep_their_snapshot_while_the_writer_works(shelf: Store) -> None:
    with duckdb.connect(str(shelf.index), read_only=True) as reader:
        duckdb_view.update(shelf.index, verify_study(shelf.study("first").folder))
        assert reader.execute("select count(*) from studies").fetchall() == [(2,)]


def test_mlflow_has_a_parent_a_study_and_a_child_a_record(shelf: Store) -> None:
    tracker = Tracker.open(shelf)
    client = tracker.client()
    experiment = client.get_experiment_by_name("kv_cache")
    assert experiment.artifact_location == (shelf.artifacts / "kv_cache").as_uri()
    runs = client.search_runs(
        [experiment.experiment_id], "tags.`counterproof.study` = 'first'", max_results=100
    )
    parents = [run for run in runs if run.data.tags["counterproof.level"] == "study"]
    assert len(parents) == 1
    children = [run for run in runs if run not in parents]
    study = verify_study(shelf.study("first").folder)
    sealed = {run.manifest_sha256 for run in study.runs}
    assert {run.data.tags.get("counterproof.manifest_sha256") for run in children} == {*sealed, None}
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parents[0].info.run_id}
    states = {run.info.run_name: run.info.status for run in children}
    assert states.pop("first/00-again-1") == "KILLED"
    assert set(states.values()) == {"FINISHED"}
    baseline = next(run for run in children if run.info.run_name == "first/00-baseline-1")
    assert 20 <= len(baseline.data.metrics) <= 80
    assert all(math.isfinite(value) for run in runs for value in run.data.metrics.values())
    assert baseline.data.params["engine.kv_cache.enabled"] == "false"
    (dataset,) = baseline.inputs.dataset_inputs
    expected = next(r.manifest["workload_sha256"] for r in study.runs if r.folder.name == "00-baseline-1")
    assert dataset.dataset.digest == expected[:36]
    artifacts = {item.path for item in client.list_artifacts(baseline.info.run_id)}
    assert {"requests.parquet", "tokens.parquet", "manifest.json"} <= artifacts
    assert not any(tag.startswith(("mlflow.user", "mlflow.source")) for tag in baseline.data.tags)


def test_numbers_that_do_not_exist_are_tags_with_a_reason(shelf: Store) -> None:
    client = Tracker.open(shelf).client()
    experiment = client.get_experiment_by_name("kv_cache")
    runs = client.search_runs(
        [experiment.experiment_id], "tags.`counterproof.study` = 'second'", max_results=100
    )
    timed = [run for run in runs if run.info.run_name == "second/00-baseline-1"]
    assert "tpot_ms/p50" not in timed[0].data.metrics
    assert "failed" in timed[0].data.tags["not_measured.tpot_ms/p50"]


def test_a_changed_outcome_replaces_the_runs_instead_of_adding_to_them(shelf: Store) -> None:
    tracker = Tracker.open(shelf)
    study = verify_study(shelf.study("second").folder)
    before = mlflow_view.content_digest(tracker)
    client = tracker.client()
    experiment = client.get_experiment_by_name("kv_cache").experiment_id
    (parent,) = client.search_runs(
        [experiment], "tags.`counterproof.study` = 'second' and tags.`counterproof.level` = 'study'"
    )
    # As an ingestion that was killed halfway would leave it.
    client.set_tag(parent.info.run_id, "counterproof.state", "stale")
    assert mlflow_view.ingest(tracker, study) is True
    assert mlflow_view.content_digest(tracker) == before


def test_a_tampered_study_is_named_and_left_out(
    shelf: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Store(tmp_path / "copy")
    shutil.copytree(shelf.studies, copy.studies)
    victim = copy.studies / "first" / "runs" / "02-slowed-1" / "tokens.parquet"
    victim.write_bytes(victim.read_bytes() + b"x")
    monkeypatch.setattr(mlflow_mirror, "mirror", lambda *_: mlflow_mirror.Mirrored(0, 0))
    result = views.rebuild(copy)
    assert result.studies == ("second",)
    assert [name for name, _ in result.refused] == ["first"]
    assert "02-slowed-1/tokens.parquet was changed" in result.refused[0][1]
    assert {study for (study,) in rows(copy, "select study from runs")} == {"second"}


def test_an_unreachable_tracker_costs_a_warning_and_a_journal_line(
    shelf: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Store(tmp_path / "copy")
    shutil.copytree(shelf.studies / "second", copy.studies / "second")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    paths = StudyPaths(copy.studies / "second")
    (problem,) = views.refresh(copy, paths)
    assert "MLflow" in problem
    assert "index rebuild" in problem
    last = journal.read(paths.journal).events[-1]
    assert (last["kind"], last["view"]) == ("view_failed", "MLflow")
    assert rows(copy, "select study from studies") == [("second",)]
    verify_study(paths.folder)
    assert "not rebuilt" in views.rebuild(copy).mlflow


def test_only_one_process_writes_the_views(shelf: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "LOCK_SECONDS", 0.2)
    paths = shelf.study("second")
    with FileLock(shelf.views_lock):
        problems = views.refresh(shelf, paths)
    assert len(problems) == 2
    assert all("in use by another process" in problem for problem in problems)
    assert [e["kind"] for e in Journal(paths.journal).events()[-2:]] == ["view_failed"] * 2


def test_the_tracker_is_absolute_and_follows_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert Tracker.open(store) == Tracker(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "mlartifacts")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker.invalid")
    assert Tracker.open(store) == Tracker("http://tracker.invalid", None)


def digests(store: Store) -> str:
    """Content of both views, read in a process of its own: MLflow keeps connections to a database open."""
    code = (
        "from counterproof.record import duckdb_view, mlflow_view, store\n"
        "opened = store.open_store()\n"
        "print(duckdb_view.content_digest(opened.index))\n"
        "print(mlflow_view.content_digest(mlflow_view.Tracker.open(opened)))\n"
    )
    return run(store, "-c", code)


def run(store: Store, *arguments: str) -> str:
    environment = {**os.environ, "COUNTERPROOF_STORE": str(store.root)}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_rebuild_from_the_folders_alone_is_equal(shelf: Store) -> None:
    """Last in this file: it replaces the database under this process."""
    tracker = Tracker.open(shelf)
    before = f"{duckdb_view.content_digest(shelf.index)}\n{mlflow_view.content_digest(tracker)}\n"
    shelf.index.unlink()
    shelf.mlflow_db.unlink()
    shutil.rmtree(shelf.artifacts)
    assert "2 studies indexed" in run(shelf, "-m", "counterproof", "index", "rebuild")
    assert digests(shelf) == before


def test_mlflow_says_nothing_while_it_makes_its_tables(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from counterproof.record.mlflow_view import Tracker\n"
        "client = Tracker(f'sqlite:///{sys.argv[1]}/mlflow.db', Path(sys.argv[1])).client()\n"
        "print([e.name for e in client.search_experiments()])\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert (done.stdout.strip(), done.stderr) == ("['Default']", "")


def test_the_sabotaged_arm_of_the_probes_has_its_configuration_in_the_mirror() -> None:
    from counterproof.record.mlflow_view import arm_config

    plan = {"arms": {"baseline": {"config": {"a": 1}}}, "probes": {"sabotage": {"config": {"a": 2}}}}
    assert arm_config(plan, "baseline") == {"a": 1}
    assert arm_config(plan, "sabotage") == {"a": 2}
