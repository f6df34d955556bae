"""A planted corner from the search to the gate: found with the real engine in a review, shrunk, entered, and judged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof.cli import main
from counterproof.measure.compare import compare
from counterproof.measure.load import load_study
from counterproof.record import atomic
from counterproof.record.journal import Journal
from counterproof.record.store import StudyPaths
from counterproof_review.challenge import declared, hunt
from counterproof_review.challenge.search import Budget
from counterproof_review.protocol import folder, lookup, outcome

SLOTS = 3
CHALLENGE_SPACE = declared.challenge_space
CORNER = f"min_running={SLOTS};delay_us=4000"
SMALL = Budget(cells=20, probe_blocks=1, confirm_blocks=3, confirm=1)
MINUTES = "30"  # never used up: what ends this search is its budget, not the clock


def without_bursts(scope: Any) -> dict[str, Any]:
    """The declared space without bursts: whether two of them pile up to three requests is a matter of timing."""
    found = CHALLENGE_SPACE(scope)
    kept = [one for one in found["dimensions"] if one["name"] != "burstiness"]
    assert len(kept) == len(found["dimensions"]) - 1
    return {**found, "dimensions": kept}


@pytest.fixture
def study(challenge_packet: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study that was run and found valid, whose candidate is slow from three requests a step on."""
    monkeypatch.setenv("COUNTERPROOF_STORE", str(tmp_path / "store"))
    made: Path = challenge_packet.study(tmp_path / "store", CORNER, concurrency=4, equivalence=True)
    found = compare(load_study(made))
    assert found["valid"] is True, found
    paths = StudyPaths(made)
    Journal(paths.journal).append("compared", sha256=atomic.write_json(paths.comparison, found))
    return made


@pytest.mark.slow
def test_a_planted_corner_is_found_shrunk_and_stops_the_promotion(
    study: Path,
    parties_module: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parties, machine = parties_module.Parties(tmp_path / "homes"), parties_module.Machine()
    review = tmp_path / "review"
    monkeypatch.setattr(hunt, "budget_of", lambda _report, _options: SMALL)
    monkeypatch.setattr(declared, "challenge_space", without_bursts)

    def do(role: str, step: str, *arguments: Any) -> int:
        code: int = parties.do(role, "review", step, *arguments, "--review", review)
        return code

    assert parties.do("steward", "review", "init", review, "--registry", parties.registry) == 0
    shutil.move(study / "runs", tmp_path / "runs-later")
    assert do("author", "prereg", study.name, "--registered") == 0
    assert do("reviewer", "commit") == do("steward", "witness") == 0
    shutil.move(tmp_path / "runs-later", study / "runs")
    with machine.working():
        assert do("author", "issue", study.name) == do("reviewer", "accept", "--independent") == 0
        assert do("reviewer", "challenge", "--minutes", MINUTES) == 2  # not before the reveal
        assert do("reviewer", "replay") == 0
    with parties.of("reviewer"):
        found = folder.read(review)
        arm = sorted(outcome.packet_of(found, found.state.issues[-1].body["packet_id"]).arms)[0]
    assert do("reviewer", "freeze", "--guess", arm, "--confidence", "0.25") == do("author", "reveal") == 0

    assert do("reviewer", "challenge", "--minutes", MINUTES) == 0
    report = json.loads((review / "search" / "report.json").read_text())
    (one,) = report["confirmed"]
    assert one["flip"] is one["inside"] is True, one
    assert (one["cell"]["concurrency"], one["needed"]) == (SLOTS, ["concurrency"])
    assert one["left_of_scope"]["concurrency"] == SLOTS - 1
    assert report["cells_tried"] == SMALL.cells
    assert report["counts"]["requests"] > 11 * SMALL.cells  # both arms really answered
    compared = [c["found"]["candidate"]["permuted"]["compared"] for c in report["metamorphic"]]
    assert len(compared) == 3 and min(compared) > 0
    assert all(
        c["found"][a][r]["broken"] == 0
        for c in report["metamorphic"]
        for a in c["found"]
        for r in ("permuted", "split", "longer")
    )
    assert "overturns the claim" in (review / "search" / "report.md").read_text()
    assert not (review / "search" / "work").exists()

    assert do("reviewer", "verdict") == do("steward", "verdict") == 0
    verdict = json.loads((review / "verdict.json").read_text())
    assert verdict["verdict"] == "NOT_REPLICATED"
    assert verdict["counterexamples"]["inside"] == 1
    assert verdict["counterexamples"]["left_of_scope"] == [one["left_of_scope"]]
    bundle = tmp_path / "final.zip"
    assert do("author", "export", bundle) == 0
    assert parties.do("author", "review", "attach", bundle, study.name) == 0
    with parties.of("author"):
        standing = lookup.standing_of(study)
        assert (standing.verdict, standing.open_counterexamples) == ("NOT_REPLICATED", 1)
        assert main(["report", study.name]) in (0, 1, 5)
        capsys.readouterr()
        assert main(["promote", study.name]) == 2
        refused = capsys.readouterr().err
    assert "NOT_REPLICATED" in refused
    assert "COUNTEREXAMPLES" in refused and "1 are open" in refused
