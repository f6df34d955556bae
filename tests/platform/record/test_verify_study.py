"""A study is what it was when recorded, or verification names the file that is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from counterproof.errors import EXIT_INVALID, EvidenceError, InputError
from counterproof.record import atomic, canonical, manifest
from counterproof.record.journal import Journal
from counterproof.record.store import RunKey, StudyPaths, open_store
from counterproof.record.verify import verify_study
from counterproof.run import judge


@pytest.fixture
def study(build_study: Callable[..., Path]) -> Path:
    return build_study(blocks=1, requests=2, new_tokens=2)


def test_an_untouched_study_verifies(study: Path) -> None:
    found = verify_study(study)
    assert len(found.runs) == 6
    assert found.run(0, "candidate") is not None
    assert found.run(None, "baseline") is not None
    assert found.run(1, "candidate") is None
    assert found.journal_head == found.journal[-1]["hash"]


@pytest.mark.parametrize(
    "name",
    ["requests.parquet", "outputs.jsonl", "environment.json", "config/effective.yaml", "log.txt"],
)
def test_a_changed_byte_of_any_file_is_named(study: Path, name: str) -> None:
    path = study / "runs" / "00-again-1" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(EvidenceError) as caught:
        verify_study(study)
    assert f"00-again-1/{name} was changed" in str(caught.value)
    assert caught.value.exit_code == EXIT_INVALID


def test_missing_and_added_files_are_named(study: Path) -> None:
    run = study / "runs" / "00-again-1"
    (run / "log.txt").unlink()
    (run / "extra.txt").write_text("x")
    with pytest.raises(EvidenceError) as caught:
        verify_study(study)
    assert caught.value.details == ["00-again-1/log.txt is missing", "00-again-1/extra.txt was added"]


def test_a_link_is_refused(study: Path) -> None:
    (study / "runs" / "00-again-1" / "link").symlink_to("log.txt")
    with pytest.raises(EvidenceError, match="link"):
        verify_study(study)


def test_a_resealed_record_is_found_by_the_journal(study: Path) -> None:
    """Changing a file and its manifest consistently does not help: the journal knows the manifest's hash."""
    run = study / "runs" / "00-again-1"
    (run / "log.txt").write_text("nothing happened\n")
    content = json.loads((run / "manifest.json").read_text())
    content["files"]["log.txt"] = {
        "sha256": canonical.sha256_file(run / "log.txt"),
        "size": (run / "log.txt").stat().st_size,
    }
    atomic.write_json(run / "manifest.json", content)
    with pytest.raises(EvidenceError, match=r"00-again-1/manifest\.json was changed"):
        verify_study(study)


def test_a_deleted_record_is_found(study: Path) -> None:
    shutil.rmtree(study / "runs" / "00-again-1")
    with pytest.raises(EvidenceError, match=r"00-again-1 was sealed, but its manifest\.json is missing"):
        verify_study(study)


def test_a_planted_record_is_found(study: Path) -> None:
    shutil.copytree(study / "runs" / "00-again-1", study / "runs" / "00-again-2")
    with pytest.raises(EvidenceError, match="00-again-2 has a manifest, but the journal does not know it"):
        verify_study(study)


def test_a_record_moved_to_another_place_contradicts_its_manifest(study: Path) -> None:
    shutil.copytree(study / "runs" / "00-again-1", study / "runs" / "00-slowed-2")
    digest = manifest.sha256(study / "runs" / "00-slowed-2")
    Journal(study / "journal.jsonl").append("run_sealed", run="00-slowed-2", manifest_sha256=digest)
    with pytest.raises(EvidenceError, match="arm is 'again', not 'slowed'"):
        verify_study(study)


def test_a_copy_under_another_name_is_not_a_second_study(study: Path) -> None:
    copied = study.parent / "another_name"
    shutil.copytree(study, copied)
    with pytest.raises(EvidenceError, match=f"another_name holds the record of study '{study.name}'"):
        verify_study(copied)
    assert len(verify_study(study).runs) == 6


def test_a_changed_plan_is_found(study: Path) -> None:
    plan = json.loads((study / "plan.json").read_text())
    plan["primary"]["sesoi"] = 0.001
    atomic.write_json(study / "plan.json", plan)
    with pytest.raises(EvidenceError, match=r"plan\.json .* was changed after the study started"):
        verify_study(study)


def test_a_journal_without_its_beginning_is_found(study: Path) -> None:
    (study / "journal.jsonl").write_bytes(b"")
    with pytest.raises(EvidenceError, match="does not begin with exactly one study_started"):
        verify_study(study)


def test_a_changed_outcome_is_found(study: Path) -> None:
    digest = atomic.write_json(study / "decision.json", {"decision": "HOLD"})
    Journal(study / "journal.jsonl").append("decided", sha256=digest, decision="HOLD")
    verify_study(study)
    atomic.write_json(study / "decision.json", {"decision": "PROMOTE"})
    with pytest.raises(EvidenceError, match=r"decision\.json .* was changed"):
        verify_study(study)


@pytest.mark.parametrize("name", ["comparison.json", "decision.json"])
def test_an_outcome_that_no_event_names_is_refused(study: Path, name: str) -> None:
    atomic.write_json(study / name, {"decision": "PROMOTE"})
    with pytest.raises(EvidenceError, match=f"{name} .* no event names it"):
        verify_study(study)


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_a_changed_report_is_found_and_can_be_made_anew(study: Path, name: str) -> None:
    paths = StudyPaths(study)
    judge.judge(paths)
    verify_study(study)
    text = (study / name).read_text(encoding="utf-8")
    (study / name).write_text(text.replace("HOLD", "PROMOTE"), encoding="utf-8")
    with pytest.raises(EvidenceError, match=f"{name} .* was changed") as caught:
        verify_study(study)
    assert "delete it" in caught.value.details[0]
    (study / name).unlink()
    judge.judge(paths)
    assert (study / name).is_file()
    verify_study(study)


def test_a_sealed_folder_is_never_sealed_again(study: Path) -> None:
    with pytest.raises(EvidenceError, match="sealed already"):
        manifest.seal(study / "runs" / "00-again-1", {})


def test_run_names_are_strict() -> None:
    for key in (RunKey(None, "candidate", 3), RunKey(0, "baseline", 1), RunKey(12, "slowed", 10)):
        assert RunKey.parse(key.name) == key
    assert RunKey(None, "candidate", 1).phase == "equivalence"
    for name in ("0-baseline-1", "00-baseline", "eq-Baseline-1", "../00-baseline-1", "00-baseline-1\n"):
        with pytest.raises(InputError):
            RunKey.parse(name)


def test_the_store_is_found_and_names_are_checked(store: Path) -> None:
    opened = open_store()
    assert opened.root == store
    assert open_store(store / "other").root == store / "other"
    with pytest.raises(InputError, match="there is no study 'x'"):
        opened.study("x")
    for name in ("../x", "", "A", "a/b", ".x", "x" * 101):
        with pytest.raises(InputError, match="cannot name a study"):
            opened.new_study(name)
