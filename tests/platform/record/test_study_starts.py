"""The chain of study starts: every start is in it, and neither an edit nor a deleted study goes unseen."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from counterproof.errors import EvidenceError
from counterproof.record import atomic, starts
from counterproof.record.store import Store


def study(store: Store, name: str, **content: str) -> str:
    paths = store.new_study(name)
    paths.folder.mkdir(parents=True)
    digest = atomic.write_json(paths.plan, {"study": name, **content})
    starts.append(store.root, name, "kv_cache", digest)
    return digest


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "store").create()
    for name in ("one", "two", "three"):
        study(found, name)
    return found


def test_starts_follow_each_other(store: Store) -> None:
    found = starts.read(store.root)
    assert [(one.seq, one.study) for one in found] == [(0, "one"), (1, "two"), (2, "three")]
    assert starts.vanished(store) == []


def test_a_study_that_was_made_to_vanish_shows(store: Store) -> None:
    shutil.rmtree(store.new_study("two").folder)
    assert [one.study for one in starts.vanished(store)] == ["two"]


def test_a_study_whose_name_was_taken_by_another_plan_shows(store: Store) -> None:
    atomic.write_json(store.new_study("two").plan, {"study": "two", "other": "plan"})
    assert [one.study for one in starts.vanished(store)] == ["two"]


@pytest.mark.parametrize("change", ["edit", "drop", "swap", "cut", "space"])
def test_an_edited_chain_is_refused(store: Store, change: str) -> None:
    path = store.root / starts.NAME
    lines = path.read_bytes().splitlines(keepends=True)
    changed = {
        "edit": [lines[0].replace(b"one", b"uno"), *lines[1:]],
        "drop": [lines[0], lines[2]],
        "swap": [lines[1], lines[0], lines[2]],
        "cut": [*lines[:2], lines[2][:-3]],
        "space": [lines[0].replace(b":", b": ", 1), *lines[1:]],
    }[change]
    path.write_bytes(b"".join(changed))
    with pytest.raises(EvidenceError):
        starts.read(store.root)


def test_a_chain_that_lost_its_end_has_another_head(store: Store) -> None:
    """It reads well alone; whoever noted the head sees it."""
    path = store.root / starts.NAME
    head = starts.read(store.root)[-1].sha256
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert starts.read(store.root)[-1].sha256 != head


def test_a_start_that_was_cut_off_is_kept_aside_and_the_next_one_follows(store: Store) -> None:
    """A kill or a full disk in the midst of a line must not close the store for every later study."""
    path = store.root / starts.NAME
    whole = path.read_bytes()
    for number in (1, 2):
        path.write_bytes(path.read_bytes() + b'{"experiment":"kv_')
        study(store, f"next-{number}")
        assert (store.root / f"starts.torn-{number}").read_bytes() == b'{"experiment":"kv_'
    assert path.read_bytes().startswith(whole)
    assert [one.study for one in starts.read(store.root)] == ["one", "two", "three", "next-1", "next-2"]
    assert starts.vanished(store) == []


def test_starts_at_the_same_time_all_get_their_place(tmp_path: Path) -> None:
    store = Store(tmp_path / "store").create()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: study(store, f"s{i}"), range(12)))
    found = starts.read(store.root)
    assert [one.seq for one in found] == list(range(12))
    assert {one.study for one in found} == {f"s{i}" for i in range(12)}
