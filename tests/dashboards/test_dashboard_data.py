"""Reading the store: what may be believed, what is refused with the file named, and what is merely not there."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterproof_dashboard import data, liveness, overview, samples
from counterproof_dashboard.data import COMPLETE, LOST, OTHER_SCHEMA, REFUSED, RUNNING

GAIN, KILLED = "20260102-030405-kv_cache", "20260103-000000-kv_cache"
UNFINISHED = "20260106-000000-lost"


def read(root: Path, name: str) -> data.Study:
    return data.read_study(data.store_of(root), name)


def test_an_absent_or_empty_store_has_no_studies(tmp_path: Path) -> None:
    assert data.study_names(data.store_of(tmp_path / "nowhere")) == []
    (tmp_path / "studies").mkdir()
    assert data.study_names(data.store_of(tmp_path)) == []
    (tmp_path / "studies" / "a-file").write_text("x")
    (tmp_path / "studies" / ".hidden").mkdir()
    assert data.study_names(data.store_of(tmp_path)) == []


def test_a_complete_study_is_believed_with_all_its_runs(gallery: Path) -> None:
    study = read(gallery, GAIN)
    assert (study.status, study.problems) == (COMPLETE, ())
    assert len(study.sealed()) == 24
    assert len(study.sealed("candidate")) == 6
    assert study.compared


def test_a_killed_attempt_is_counted_as_lost_and_never_as_data(gallery: Path) -> None:
    study = read(gallery, KILLED)
    assert study.status == COMPLETE
    assert study.in_state(LOST) == 1
    assert len(study.sealed()) == 24
    _, counts = samples.latency_samples(study, "e2e_ms")
    assert {count.runs for count in counts} == {6}


def test_a_study_that_stopped_is_lost_and_says_how_to_go_on(gallery: Path) -> None:
    study = read(gallery, UNFINISHED)
    assert study.status == LOST
    assert not study.compared
    assert f"counterproof resume {UNFINISHED}" in overview.why(study)


def test_a_judgement_in_between_is_not_the_end_of_a_study(
    own: Callable[..., Path], rewrite: Callable[..., None]
) -> None:
    root = own(GAIN)
    rewrite(root / "studies" / GAIN, "decision", lambda d: d.update(decision="CONTINUE"))
    study = read(root, GAIN)
    assert study.status == LOST
    assert study.compared


def test_a_study_whose_lock_is_held_is_running_and_the_lock_stays_free_for_its_writer(
    own: Callable[..., Path],
) -> None:
    root = own(UNFINISHED)
    lock = root / "studies" / UNFINISHED / ".lock"
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        study = read(root, UNFINISHED)
        assert study.status == RUNNING
        assert len(study.sealed()) == 22
    assert read(root, UNFINISHED).status == LOST


def test_without_a_lock_table_a_recent_change_counts_as_running(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    assert not liveness.held_by_a_process(lock, tmp_path / "no-table")
    lock.touch()
    assert liveness.held_by_a_process(lock, tmp_path / "no-table")
    os.utime(lock, (0, 0))
    assert not liveness.held_by_a_process(lock, tmp_path / "no-table")


@pytest.mark.parametrize(
    "file, named",
    [
        ("plan.json", "plan.json"),
        ("journal.jsonl", "journal.jsonl"),
        ("comparison.json", "comparison.json"),
        ("decision.json", "decision.json"),
        ("runs/02-candidate-1/requests.parquet", "02-candidate-1/requests.parquet"),
        ("runs/02-candidate-1/tokens.parquet", "02-candidate-1/tokens.parquet"),
        ("runs/eq-baseline-1/events.jsonl", "eq-baseline-1/events.jsonl"),
        ("runs/00-again-1/config/effective.yaml", "00-again-1/config/effective.yaml"),
        ("runs/00-again-1/manifest.json", "00-again-1/manifest.json"),
    ],
)
def test_a_changed_file_refuses_the_study_and_is_named(
    own: Callable[..., Path], file: str, named: str
) -> None:
    root = own(GAIN)
    path = root / "studies" / GAIN / file
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    study = read(root, GAIN)
    assert study.status == REFUSED
    assert any(named in problem for problem in study.problems), study.problems
    assert not study.compared
    assert study.comparison == study.decision == {}
    assert study.runs == ()


@pytest.mark.parametrize(
    "gone", ["runs/02-candidate-1/requests.parquet", "runs/02-candidate-1/manifest.json"]
)
def test_a_removed_file_refuses_the_study(own: Callable[..., Path], gone: str) -> None:
    root = own(GAIN)
    (root / "studies" / GAIN / gone).unlink()
    study = read(root, GAIN)
    assert study.status == REFUSED
    assert any("02-candidate-1" in problem for problem in study.problems)


def test_an_added_file_and_a_link_refuse_the_study(own: Callable[..., Path]) -> None:
    root = own(GAIN, KILLED)
    (root / "studies" / GAIN / "runs" / "00-baseline-1" / "extra.txt").write_text("x")
    assert read(root, GAIN).status == REFUSED
    target = root / "studies" / KILLED / "runs" / "00-baseline-1" / "log.txt"
    target.unlink()
    target.symlink_to("/etc/hostname")
    assert read(root, KILLED).status == REFUSED


def test_a_comparison_of_other_records_is_refused(
    own: Callable[..., Path], rewrite: Callable[..., None]
) -> None:
    root = own(GAIN)
    rewrite(root / "studies" / GAIN, "comparison", lambda c: c["runs"][3].update(manifest_sha256="0" * 64))
    study = read(root, GAIN)
    assert study.status == REFUSED
    assert "comparison.json" in study.problems[0]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"schema": NaN}', b'{"a":1,"a":2}', b"\xff\xfe", b"[" * 100_000]
)
def test_a_half_written_or_damaged_plan_is_refused_and_harms_nothing(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "studies" / "x"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_bytes(content)
    study = read(tmp_path, "x")
    assert study.status == REFUSED
    assert "plan.json" in study.problems[0]


def test_a_folder_without_a_plan_never_started(tmp_path: Path) -> None:
    (tmp_path / "studies" / "x").mkdir(parents=True)
    study = read(tmp_path, "x")
    assert study.status == LOST
    assert "plan.json is not there" in study.problems[0]


def test_another_schema_gives_facts_of_the_plan_and_no_numbers(own: Callable[..., Path]) -> None:
    root = own(GAIN)
    path = root / "studies" / GAIN / "plan.json"
    plan = json.loads(path.read_text())
    plan["schema"] = "counterproof-plan/0"
    path.write_text(json.dumps(plan))
    study = read(root, GAIN)
    assert study.status == OTHER_SCHEMA
    assert "counterproof-plan/0" in study.problems[0]
    assert not study.compared
    assert study.comparison == {}
    assert study.plan["experiment"] == "kv_cache"


def test_plans_that_lack_fields_are_refused_not_crashed_on(
    own: Callable[..., Path], synthetic: ModuleType
) -> None:
    root = own(GAIN)
    folder = root / "studies" / GAIN
    (folder / "plan.json").write_text(json.dumps({"schema": "counterproof-plan/1"}))
    assert read(root, GAIN).status == REFUSED
    shutil.rmtree(folder / "runs")
    (folder / "journal.jsonl").unlink()
    assert read(root, GAIN).status == REFUSED


def test_the_fingerprint_follows_every_file(own: Callable[..., Path]) -> None:
    root = own(GAIN)
    store, folder = data.store_of(root), root / "studies" / GAIN
    seen = {data.fingerprint(store, GAIN)}
    assert data.fingerprint(store, GAIN) in seen
    target = folder / "runs" / "00-baseline-1" / "requests.parquet"
    for change in (
        lambda: target.write_bytes(target.read_bytes() + b"x"),
        lambda: (folder / "new.txt").write_text("x"),
        lambda: (folder / "new.txt").unlink(),
        lambda: (folder / "journal.jsonl").open("ab").write(b"torn"),
    ):
        before = len(seen)
        change()
        seen.add(data.fingerprint(store, GAIN))
        if change.__code__.co_names[-1] != "unlink":
            assert len(seen) == before + 1


def test_the_writers_database_is_never_opened(own: Callable[..., Path]) -> None:
    root = own(GAIN)
    for name in ("index.duckdb", "mlflow.db"):
        os.mkfifo(root / name)  # opening it for reading would wait for ever
    assert read(root, GAIN).status == COMPLETE


def test_latencies_equal_those_of_the_files_by_plain_arithmetic(gallery: Path) -> None:
    study = read(gallery, GAIN)
    expected = []
    for folder in sorted((gallery / "studies" / GAIN / "runs").glob("0*-candidate-1")):
        for row in pq.read_table(folder / "requests.parquet").to_pylist():
            expected.append((row["last_token_ns"] - row["first_token_ns"]) / (row["output_tokens"] - 1) / 1e6)
    found, counts = samples.latency_samples(study, "tpot_ms")
    values = found.loc[found["arm"] == "candidate", "value"]
    assert len(expected) == 72
    assert sorted(values) == pytest.approx(sorted(expected))
    count = next(c for c in counts if c.arm == "candidate")
    assert (count.runs, count.blocks, count.values, count.failed, count.missing) == (6, 6, 72, 0, 0)


def test_failed_requests_are_counted_and_stand_at_infinity(gallery: Path) -> None:
    found, counts = samples.latency_samples(read(gallery, "20260105-000000-invalid"), "ttft_ms")
    count = next(c for c in counts if c.arm == "candidate")
    assert (count.values, count.failed) == (60, 12)
    assert (found.loc[found["arm"] == "candidate", "value"] == float("inf")).sum() == 12


def test_a_run_without_a_column_is_not_recorded_rather_than_zero(gallery: Path, tmp_path: Path) -> None:
    study = read(gallery, GAIN)
    copy = tmp_path / "run"
    copy.mkdir()
    table = pq.read_table(study.sealed()[0].folder / "requests.parquet")
    pq.write_table(table.drop_columns(["scheduled_ns"]), copy / "requests.parquet")
    pq.write_table(pa.table({"time_ns": [1]}), copy / "resources.parquet")
    run = data.Run("00-baseline-1", copy, 0, "baseline", 1, "sealed")
    old = data.Study("old", tmp_path, COMPLETE, runs=(run,))
    for metric in samples.LATENCIES:
        frame, (count,) = samples.latency_samples(old, metric)
        assert frame.empty
        assert count.values == 0
        assert count.unrecorded == ("00-baseline-1",)
    frame, absent = samples.memory_timelines(old, "rss_bytes", "sampler")
    assert frame.empty
    assert absent == ["00-baseline-1"]


def test_memory_timelines_keep_every_run(gallery: Path) -> None:
    study = read(gallery, GAIN)
    rss, absent = samples.memory_timelines(study, "rss_bytes", "sampler")
    assert absent == []
    assert rss["run"].nunique() == 24
    assert rss["value"].between(560, 600).all()
    kv, _ = samples.memory_timelines(study, "kv_bytes_used", "engine")
    peaks = kv.groupby("arm")["value"].max()
    assert peaks["candidate"] > 1
    assert peaks["baseline"] == 0
