"""The view comes to the same content by several processes, by one, by streaming what is large and by one study at a
time; a study whose tables cannot be read is named and left out; no more lies in memory than was allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from counterproof.errors import EvidenceError
from counterproof.record import duckdb_parts, duckdb_view, manifest, verify_many, views
from counterproof.record.schema import TABLES
from counterproof.record.store import Store
from counterproof.record.verify import verify_study

STUDIES = 20
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def store(synthetic_store: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Judged studies, more than one batch of them."""
    assert STUDIES > duckdb_view.BATCH
    root = tmp_path_factory.mktemp("parts")
    synthetic_store.fill(root, STUDIES, blocks=1, requests=2, new_tokens=3)
    return Store(root)


@pytest.fixture(scope="module")
def expected(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The content by one study at a time."""
    path = tmp_path_factory.mktemp("serial") / "index.duckdb"
    for folder in store.study_folders():
        duckdb_view.update(path, verify_study(folder))
    return duckdb_view.content_digest(path)


def rebuilt(store: Store) -> dict[str, str]:
    found, refused = views.rebuild_duckdb(store)
    assert (len(found), refused) == (STUDIES, [])
    return duckdb_view.content_digest(store.index)


def test_several_processes_come_to_the_content_of_one(
    store: Store, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rebuilt(store) == expected
    started: list[int] = []

    def counted(workers: int, context: Any) -> Any:
        started.append(workers)
        return ProcessPoolExecutor(workers, context)

    monkeypatch.setattr(verify_many, "MANY", 2)
    monkeypatch.setattr(verify_many, "ProcessPoolExecutor", counted)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert rebuilt(store) == expected
    assert started == [2]


def test_what_is_too_large_to_be_held_is_streamed(
    store: Store, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    studies = [verify_study(folder) for folder in store.study_folders()[:2]]
    runs = sum(len(study.runs) for study in studies)
    assert len(duckdb_parts.part_of(studies).large) == 0
    size = sum(studies[0].runs[0].manifest["files"][file]["size"] for file in TABLES)
    monkeypatch.setattr(duckdb_parts, "BUDGET", size)
    part = duckdb_parts.part_of(studies)
    assert (part.keys.num_rows, len(part.large)) == (1, runs - 1)
    assert rebuilt(store) == expected


def test_every_row_has_the_run_that_it_was_read_from(store: Store, expected: dict[str, str]) -> None:
    """By the files: the position that DuckDB gives a file is the one that its path has in the list."""
    assert rebuilt(store) == expected
    folder = store.study_folders()[3]
    with duckdb.connect(str(store.index), read_only=True) as connection:
        for run in sorted((folder / "runs").iterdir()):
            for file, schema in TABLES.items():
                query = f"select {', '.join(schema.names)} from {file[:-8]} where study = ? and run = ? order by all"
                found = connection.execute(query, [folder.name, run.name]).fetchall()
                rows = [tuple(row.values()) for row in pq.read_table(run / file).to_pylist()]
                assert sorted(map(repr, rows)) == sorted(map(repr, found)), (run, file)


def test_a_study_whose_table_is_no_parquet_is_named_and_left_out(
    synthetic: ModuleType, synthetic_store: ModuleType, tmp_path: Path
) -> None:
    model = synthetic.StudyModel(study="template", blocks=1, requests=1, new_tokens=2, equivalence=False)
    template = synthetic_store.Template(synthetic.build(tmp_path / "from", model))
    store = Store(tmp_path / "store")
    broken = {"tokens.parquet": b"sealed as it is, but no table"}
    template.copy(store.studies / "first")
    template.copy(store.studies / "second", lambda run: broken if run == "00-again-1" else {})
    template.copy(store.studies / "third")
    found, refused = views.rebuild_duckdb(store)
    assert [study.paths.name for study in found] == ["first", "third"]
    assert [name for name, _ in refused] == ["second"]
    assert "its tables do not have the expected form" in refused[0][1]
    with duckdb.connect(str(store.index), read_only=True) as connection:
        assert connection.execute("select distinct study from tokens order by 1").fetchall() == [
            ("first",),
            ("third",),
        ]


def test_the_processes_wait_for_what_takes_their_batches_in(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that were asked for and not taken in yet are at most AHEAD a process."""
    asked: list[int] = []

    class Pool:
        def __init__(self, *_: Any) -> None: ...

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, work: Callable[..., Any], folders: Sequence[Path]) -> Future[Any]:
            asked.append(len(folders))
            future: Future[Any] = Future()
            future.set_result(work(folders))
            return future

    monkeypatch.setattr(verify_many, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(verify_many, "BATCH", 2)
    monkeypatch.setattr(verify_many, "MANY", 2)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    names: list[str] = []
    for taken, batch in enumerate(verify_many.read_all(store.study_folders())):
        assert len(asked) - taken <= 2 * verify_many.AHEAD
        names += [name for name, _ in batch.outcomes]
    assert names == [folder.name for folder in store.study_folders()]
    assert asked == [2] * (STUDIES // 2)


def test_a_records_files_are_listed_without_its_seal_and_links_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "00-baseline-1"
    (folder / "config" / "deep").mkdir(parents=True)
    for name in ("manifest.json", "log.txt", "config/manifest.json", "config/deep/a", "config.txt"):
        (folder / name).write_text("x", encoding="utf-8")
    assert manifest.list_files(folder) == ["config.txt", "config/deep/a", "config/manifest.json", "log.txt"]
    (folder / "config" / "deep" / "link").symlink_to(folder)
    with pytest.raises(EvidenceError, match=r"^config/deep/link in 00-baseline-1 is a link"):
        manifest.list_files(folder)
