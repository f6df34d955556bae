"""Stores of many studies: a kept line is never stale, batches hold every row, quantiles are the numbers they should be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from counterproof.commands import listing
from counterproof.record import atomic, duckdb_view, summaries, verify_many, views
from counterproof.record.journal import Journal
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import verify_study

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def large(synthetic_store: ModuleType) -> ModuleType:
    """The module that writes many studies at once."""
    return synthetic_store


@pytest.fixture
def shelf(large: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Five judged studies whose lines may be kept at once."""
    monkeypatch.setattr(summaries, "RACY_NS", 0)
    large.fill(tmp_path / "store", 5, blocks=1, requests=2, new_tokens=3)
    return Store(tmp_path / "store")


def test_every_study_of_a_filled_store_verifies(shelf: Store) -> None:
    studies = [verify_study(folder) for folder in shelf.study_folders()]
    assert [study.paths.name for study in studies] == [f"scale-{number:05d}" for number in range(5)]
    assert len({study.journal_head for study in studies}) == 5
    assert all(len(study.runs) == 6 for study in studies)


def test_a_line_is_kept_until_its_study_is_touched(shelf: Store) -> None:
    first, made = listing.rows(shelf)
    assert made == 5
    assert listing.rows(shelf) == (first, 0)
    assert [row[0] for row in first] == [f"scale-{number:05d}" for number in range(5)]
    assert all(row[2] == "6/6" and row[3] in ("valid", "invalid") and row[4] for row in first)
    victim = shelf.study("scale-00002")
    Journal(victim.journal).append("extended_by_nothing")
    again, made = listing.rows(shelf)
    assert (again, made) == (first, 1)
    shutil.rmtree(shelf.study("scale-00004").folder)
    assert listing.rows(shelf) == (first[:4], 0)


def test_a_change_that_hides_its_time_is_seen_and_a_refusal_is_never_kept(shelf: Store) -> None:
    first, _ = listing.rows(shelf)
    path = shelf.study("scale-00001").decision
    before = path.stat()
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"decision": "HOLD"', b'"decision": "PROM"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    for _ in range(2):
        rows, made = listing.rows(shelf)
        assert made == 1
        assert "REFUSED: decision.json of scale-00001 was changed" in rows[1][3]
    assert [row for row in rows if row[0] != "scale-00001"] == [r for r in first if r[0] != "scale-00001"]


def test_a_study_that_changed_a_moment_ago_is_read_again(
    shelf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "RACY_NS", 10**12)
    assert listing.rows(shelf)[1] == 5
    assert listing.rows(shelf)[1] == 5


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"of":[],"sha256":"","studies":{}}', None])
def test_kept_lines_that_are_damaged_or_of_another_version_are_made_anew(
    shelf: Store, damage: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = listing.rows(shelf)
    path = shelf.root / summaries.FILE_NAME
    if damage is None:
        monkeypatch.setattr(listing, "VERSION", "another")
    else:
        path.write_bytes(damage)
    assert listing.rows(shelf) == (first, 5)
    # One changed letter of a kept line shows in the hash over all of them.
    path.write_bytes(path.read_bytes().replace(b"kv_cache", b"kv_cachE", 1))
    assert listing.rows(shelf) == (first, 5)


def test_a_line_beside_its_study_serves_the_first_listing_and_no_changed_study(
    shelf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = listing.rows(shelf)
    (shelf.root / summaries.FILE_NAME).unlink()
    for folder in shelf.study_folders():
        listing.keep(StudyPaths(folder))
    assert listing.rows(shelf) == (first, 0)
    whole = shelf.root / summaries.FILE_NAME
    whole.unlink()
    line = shelf.study("scale-00001").folder / summaries.LINE_NAME
    line.write_bytes(line.read_bytes().replace(b"HOLD", b"PROM"))
    Journal(shelf.study("scale-00002").journal).append("extended_by_nothing")
    assert listing.rows(shelf) == (first, 2)
    # A store that was copied has other files, however equal: they are looked at once.
    copy = Store(shelf.root.with_name("copy"))
    shutil.copytree(shelf.root, copy.root)
    assert listing.rows(copy) == (first, 5)
    told: list[int] = []
    whole.unlink()
    monkeypatch.setattr(summaries, "RACY_NS", 10**18)
    assert not summaries.keep(StudyPaths(shelf.study_folders()[0]), lambda _: (("x",), True), version="1")
    summaries.rows(shelf, lambda paths: ((paths.name,), True), version="other", tell=told.append)
    assert told == [5]


def test_a_store_that_cannot_be_written_is_listed_all_the_same(
    shelf: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(atomic, "write_bytes", refuse)
    assert listing.rows(shelf)[1] == 5
    assert not (shelf.root / summaries.FILE_NAME).exists()


def test_many_studies_are_verified_on_several_cores_and_indexed_in_batches(
    large: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    studies = verify_many.MANY + 6
    assert studies > duckdb_view.BATCH
    runs = large.fill(store.root, studies, blocks=1, requests=2, new_tokens=3)
    victim = store.study("scale-00030").folder / "runs" / "00-slowed-1" / "requests.parquet"
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    told: list[tuple[str, int, int]] = []
    found, refused = views.rebuild_duckdb(store, lambda *facts: told.append(facts))
    assert len(found) == studies - 1
    assert [name for name, _ in refused] == ["scale-00030"]
    assert "requests.parquet was changed" in refused[0][1]
    assert told == [("DuckDB", number, studies) for number in range(1, studies + 1)]
    expected = {
        (study.paths.name, run.folder.name): pq.read_metadata(run.folder / "tokens.parquet").num_rows
        for study in found
        for run in study.runs
    }
    with duckdb.connect(str(store.index), read_only=True) as connection:
        counted = connection.execute("select (select count(*) from studies), (select count(*) from runs)")
        assert counted.fetchone() == (studies - 1, runs - 6)
        rows = connection.execute("select study, run, count(*) from tokens group by all").fetchall()
    assert {(study, run): number for study, run, number in rows} == expected
    # One study at a time comes to the same content.
    few = Store(tmp_path / "few")
    few.root.mkdir()
    for study in found[:3]:
        duckdb_view.update(few.index, study)
    other = Store(tmp_path / "other")
    other.root.mkdir()
    duckdb_view.rebuild(other.index, found[:3])
    assert duckdb_view.content_digest(few.index) == duckdb_view.content_digest(other.index)


def test_times_between_tokens_are_those_of_the_records(large: ModuleType, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    tokens = large.build_long(store.root, "long", 60_000, blocks=2)
    views.rebuild_duckdb(store)
    found = duckdb_view.token_gaps(store.index, "long")
    assert tokens >= 60_000
    assert sum(run.tokens for run in found) == tokens
    assert len(found) == 8
    for run in found:
        table = pq.read_table(store.studies / "long" / "runs" / run.run / "tokens.parquet").to_pandas()
        gaps = table.groupby("request_index")["time_ns"].diff().dropna().to_numpy() / 1e6
        assert run.gaps == len(gaps)
        expected = [gaps.mean(), *np.percentile(gaps, [50, 95, 99])]
        assert [run.mean, run.p50, run.p95, run.p99] == pytest.approx(expected, rel=1e-9)
    assert duckdb_view.token_gaps(store.index, "unknown") == []


def test_runs_of_single_tokens_have_no_gaps(large: ModuleType, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert large.build_long(store.root, "single", 4, blocks=1) == 4
    views.rebuild_duckdb(store)
    for run in duckdb_view.token_gaps(store.index, "single"):
        assert (run.tokens, run.gaps, run.mean, run.p99) == (1, 0, None, None)
