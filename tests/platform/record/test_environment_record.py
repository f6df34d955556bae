"""Which code, which machine: identity that notices a change, and nothing that identifies a person."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from counterproof.record import code_identity, environment, machine
from counterproof.record.difference import differences


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    package = folder / "platform" / "counterproof"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    (folder / ".gitignore").write_text("store/\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def identify(folder: Path) -> code_identity.CodeIdentity:
    return code_identity.identify(folder / "platform" / "counterproof" / "__init__.py")


def test_a_clean_commit_is_its_own_identity(checkout: Path) -> None:
    first = identify(checkout)
    assert first.kind == "git"
    assert len(first.sha) == 40
    assert (first.dirty, first.dirty_sha256) == (False, "")
    (checkout / "store").mkdir()
    (checkout / "store" / "record").write_text("ignored")
    assert identify(checkout) == first
    git(checkout, "commit", "-q", "--allow-empty", "-m", "two")
    assert identify(checkout).sha != first.sha


def test_every_uncommitted_change_is_part_of_the_identity(checkout: Path) -> None:
    package = checkout / "platform" / "counterproof"
    seen = {identify(checkout).dirty_sha256}
    (package / "__init__.py").write_text("x = 2\n")
    seen.add(identify(checkout).dirty_sha256)
    (package / "new.py").write_text("y = 1\n")
    found = identify(checkout)
    seen.add(found.dirty_sha256)
    assert found.dirty_files == (" M platform/counterproof/__init__.py", "?? platform/counterproof/new.py")
    # The content of an untracked file counts, not only its name.
    (package / "new.py").write_text("y = 2\n")
    seen.add(identify(checkout).dirty_sha256)
    git(checkout, "add", ".")
    seen.add(identify(checkout).dirty_sha256)
    assert len(seen) == 5
    assert identify(checkout).dirty


def test_code_that_no_checkout_tracks_is_identified_by_its_files(checkout: Path) -> None:
    installed = checkout / "store" / "site-packages" / "counterproof" / "__init__.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("x = 1\n")
    found = code_identity.identify(installed)
    assert found.kind == "files"
    assert found.sha.startswith("files:")
    assert not found.dirty
    assert found == code_identity.identify(installed)


def test_without_git_the_files_identify_the_code(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert identify(checkout).kind == "files"


def test_the_machine_is_identified_without_paths_or_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD_NOT", "x")
    fields = machine.identity()
    assert fields == machine.identity()
    needed = {
        "python.version",
        "os.kernel",
        "cpu.model",
        "cpu.flags_sha256",
        "cpu.affinity",
        "memory.total_bytes",
    }
    assert needed <= fields.keys()
    text = " ".join(map(str, fields.values()))
    assert os.uname().nodename not in text.split()
    assert str(Path.home()) not in text or str(Path.home()) == "/"


def test_variables_that_change_computation_are_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine.identity()["env.sha256"]
    monkeypatch.setenv("UNRELATED", "1")
    assert machine.identity()["env.sha256"] == before
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    after = machine.identity()
    assert after["env.sha256"] != before
    assert "MKL_CBWR" in after["env.names"]
    # Values stay out of the record: they may hold paths.
    monkeypatch.setenv("LD_PRELOAD", "")
    assert "COMPATIBLE" not in str(machine.identity())


def test_observations_are_values_or_none() -> None:
    seen = machine.observation()
    assert seen["memory_available_bytes"] > 0
    assert seen["load1"] >= 0
    assert {"cpu_mhz", "cpu_temperature_c", "swap_used_bytes", "other_processes"} <= seen.keys()


def test_the_environment_id_covers_every_field_but_the_excepted() -> None:
    common = environment.common_identity({"sha": "a", "dirty": False}, {"weights_sha256": "w"})
    assert common["code.sha"] == "a"
    assert "code.dirty" not in common
    engine = {"threads.count": 2, "kernel_path": "x"}
    record = environment.build(common, engine, {"load1": 0.1}, ["kernel_path"])
    assert (
        record["env_id"]
        == environment.build(common, {**engine, "kernel_path": "y"}, {}, ["kernel_path"])["env_id"]
    )
    for key in (*common, "threads.count"):
        changed = {**common, **engine, key: "changed"}
        assert environment.env_id(changed, ["kernel_path"]) != record["env_id"], key
        assert [d.path for d in differences(record["id"], changed)] == [key]
