"""The parts of benchmarks/review_end_to_end.py that decide what is measured: engines changed in one line, homes apart, a
neighbour that ends, and a guess read off the table that the reviewer sees."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import psutil
import pytest
from benchmarks import review_end_to_end as driver
from benchmarks.reviewing import parties as people
from benchmarks.reviewing.neighbour import neighbour
from benchmarks.reviewing.parties import Parties, StepError

from counterproof.commands.console import table


def test_every_changed_engine_still_finds_the_line_it_changes(repository: Path, tmp_path: Path) -> None:
    for number, text in enumerate((driver.DEAF, driver.DAWDLING)):
        target = tmp_path / str(number)
        path = people.changed_code(repository, target, {driver.ENGINE: (driver.DELAY, text)})
        changed = (target / driver.ENGINE).read_text()
        assert changed.replace(text, driver.DELAY) == (repository / driver.ENGINE).read_text()
        assert text in changed
        assert path.split(":") == [str(target / n) for n in ("platform", "engine", "reviews", "dashboards")]


def test_a_line_that_is_not_there_is_not_changed_silently(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        people.changed_code(repository, tmp_path / "code", {driver.ENGINE: ("no such line", "")})


def test_the_guess_is_the_quickest_arm_of_the_table() -> None:
    def said(*rows: tuple[str, str, int, str]) -> str:
        return table(("arm", "over arm", "blocks", "ratio"), list(rows))

    below = said(("0aaaaaaa", "1bbbbbbb", 6, "-70.0 %"), ("1bbbbbbb", "2ccccccc", 6, "+0.4 %"))
    above = said(("0aaaaaaa", "1bbbbbbb", 6, "+250.0 %"), ("0aaaaaaa", "2ccccccc", 6, "-20.0 %"))
    assert driver._guess(below) == "0aaaaaaa"
    assert driver._guess(above) == "1bbbbbbb"
    with pytest.raises(StepError, match="no pairs"):
        driver._guess("nothing")


def test_parties_share_neither_home_nor_store_nor_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERPROOF_STORE", "/somewhere")
    monkeypatch.setenv("COUNTERPROOF_KEYS", "/somewhere/keys")
    three = Parties(tmp_path, None, time.monotonic() + 60)
    told = [three.environment(role) for role in people.ROLES]
    for name in ("HOME", "COUNTERPROOF_STORE", "USER"):
        assert len({one[name] for one in told}) == 3
    assert not any("COUNTERPROOF_KEYS" in one for one in told)


def test_nobody_begins_a_command_past_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="out of time before"):
        Parties(tmp_path, None, time.monotonic() - 1).do("author", "keys", "list")


def test_the_reviewer_cannot_see_the_others_homes(tmp_path: Path) -> None:
    if not people.namespace():
        pytest.skip("this machine grants no namespaces")
    three = Parties(tmp_path, None, time.monotonic() + 60)
    for role in people.ROLES:
        three.home(role).mkdir()
        (three.home(role) / "secret").write_text(role)
    files = [str(three.home(role) / "secret") for role in people.ROLES]
    seen = subprocess.run(
        [*three.walls("reviewer"), "cat", *files], capture_output=True, text=True, timeout=30
    )
    assert seen.stdout == "reviewer"
    assert three.walls("author") == []


def test_the_neighbour_computes_and_leaves_nothing_behind() -> None:
    with neighbour(5.0, seed=1):
        children = psutil.Process().children()
        assert children
        deadline = time.monotonic() + 20
        while sum(child.cpu_times().user for child in children) < 0.05:
            assert time.monotonic() < deadline
    assert not any(child.is_running() for child in children)


def test_a_kept_result_names_the_model_and_not_its_folder(tmp_path: Path) -> None:
    setting = driver.Setting("stories260k", str(tmp_path), tmp_path, 6, tmp_path, 0.0, print)
    assert f"engine.model={tmp_path}" in driver._overrides(setting)
    assert "engine.model=stories260k" in driver._overrides(setting, setting.name)
    assert not any(str(tmp_path) in text for text in driver._overrides(setting, setting.name))
