"""A whole review by commands alone: three homes, three folders, bundles between them; then every way that it can end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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
from counterproof_review.protocol import folder as folders
from counterproof_review.protocol import lookup
from counterproof_review.trust.errors import TrustError

SEARCH = {
    "confirmed": [],
    "cells_tried": 12,
    "corners_not_tried": 3,
    "says": "none found in 12 cells, which is not proof that there is none",
}


class Whole:
    """One review in three folders that exchange bundles."""

    def __init__(self, parties: Any, study: Path, base: Path, machine: Any) -> None:
        self.parties, self.study, self.base, self.machine = parties, study, base, machine
        self.place = {role: base / f"of-{role}" for role in ("author", "reviewer", "steward")}

    def do(self, role: str, step: str, *arguments: Any) -> int:
        """Take one step as one party, then hand its bundle to the others."""
        code = self.parties.do(role, "review", step, *arguments, "--review", self.place[role])
        self.hand_over(role)
        return int(code)

    def hand_over(self, role: str) -> None:
        bundle = self.base / f"from-{role}.zip"
        assert self.parties.do(role, "review", "export", bundle, "--review", self.place[role]) == 0
        for other in self.place:
            if other != role:
                code = self.parties.do(other, "review", "import", bundle, "--review", self.place[other])
                assert code == 0

    def start(self) -> None:
        """Up to ISSUE. The study's runs appear only after its plan was preregistered and witnessed."""
        for role, place in self.place.items():
            assert self.parties.do(role, "review", "init", place, "--registry", self.parties.registry) == 0
        shutil.move(self.study / "runs", self.base / "runs-later")
        assert self.do("author", "prereg", self.study.name, "--registered") == 0
        assert self.do("reviewer", "commit") == 0
        assert self.do("steward", "witness") == 0
        shutil.move(self.base / "runs-later", self.study / "runs")

    def issue(self, *arguments: str) -> int:
        with self.machine.working():
            return self.do("author", "issue", self.study.name, *arguments)

    def replay(self, machine: Any = None) -> int:
        with (machine or self.machine).working():
            return self.do("reviewer", "replay")

    def freeze(self, *arguments: str) -> int:
        guess = sorted(self.packet().arms)[0]
        return self.do("reviewer", "freeze", "--guess", guess, "--confidence", "0.25", *arguments)

    def packet(self) -> Any:
        from counterproof_review.protocol import outcome

        review = self.read("reviewer")
        return outcome.packet_of(review, review.state.issues[-1].body["packet_id"])

    def read(self, role: str) -> Any:
        with self.parties.of(role):
            return folders.read(self.place[role])

    def finish(self, search: dict[str, Any] | None = None) -> dict[str, Any]:
        """From FREEZE to both signatures; returns verdict.json."""
        assert self.do("author", "reveal") == 0
        report = self.base / "search.json"
        report.write_text(json.dumps(search or SEARCH))
        assert self.do("reviewer", "challenge", "--report", report) == 0
        return self.sign()

    def sign(self) -> dict[str, Any]:
        assert self.do("reviewer", "verdict") == 0
        assert self.do("steward", "verdict") == 0
        value: dict[str, Any] = json.loads((self.place["author"] / "verdict.json").read_text())
        return value

    def whole(self, machine: Any = None, search: dict[str, Any] | None = None) -> dict[str, Any]:
        """Everything, with `machine` in the reviewer's place."""
        self.start()
        assert self.issue() == 0
        assert self.do("reviewer", "accept", "--independent") == 0
        assert self.replay(machine) == 0
        assert self.freeze() == 0
        return self.finish(search)


@pytest.fixture(scope="module")
def compared(support: ModuleType, fake_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was run and whose evidence its author found valid; copy it, never change it."""
    folder: Path = support.build(tmp_path_factory.mktemp("store"), fake_model, equivalence=True)
    found = compare(load_study(folder))
    assert found["valid"] is True
    paths = StudyPaths(folder)
    digest = atomic.write_json(paths.comparison, found)
    Journal(paths.journal).append("compared", sha256=digest)
    return folder


@pytest.fixture
def begin(
    compared: Path,
    parties_module: ModuleType,
    fake_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], Whole]:
    """`begin()`: a study, and three parties that have done nothing yet."""

    def make() -> Whole:
        study = tmp_path / "store" / "studies" / compared.name
        shutil.copytree(compared, study)
        monkeypatch.setenv("COUNTERPROOF_STORE", str(tmp_path / "store"))
        monkeypatch.setenv("INTAGLIO_MODELS", str(fake_model.parent))
        parties = parties_module.Parties(tmp_path / "homes")
        return Whole(parties, study, tmp_path, parties_module.Machine())

    return make


def test_a_true_gain_is_replicated_and_the_decision_sees_it(begin: Callable[[], Whole]) -> None:
    review = begin()
    found = review.whole()
    assert (found["verdict"], found["grows"]) == ("REPLICATED", True), found["reason"]
    assert found["level"] == "L3"
    assert "of blocks (95 %)" in found["stall_sentence"]
    assert found["outputs"]["wrong"] == 0 < found["outputs"]["identical"]
    assert "wrong in 0" in found["outputs_sentence"]
    assert found["stall_bound"] == pytest.approx(1 - 0.05 ** (1 / 6))
    assert found["attempts"] == [
        {"attempt": 1, "status": "completed", "blocks": 6, "failed_runs": 0, "reason": ""}
    ]
    bundle = review.base / "from-author.zip"
    review.hand_over("author")
    assert review.parties.do("author", "review", "attach", bundle, review.study.name) == 0
    with review.parties.of("author"):
        standing = lookup.standing_of(review.study)
    assert (standing.verdict, standing.open_counterexamples) == ("REPLICATED", 0)


def test_nobody_believes_a_review_whose_steward_is_not_trusted_here(
    begin: Callable[[], Whole], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    review = begin()
    review.whole()
    review.hand_over("author")
    review.parties.do("author", "review", "attach", review.base / "from-author.zip", review.study.name)
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(tmp_path / "stranger"))
    with pytest.raises(TrustError, match="no steward is trusted"):
        lookup.standing_of(review.study)


def test_an_inflated_claim_is_not_replicated(begin: Callable[[], Whole], parties_module: ModuleType) -> None:
    """The author measured a gain of half; on the reviewer's machine the change gains nothing."""
    found = begin().whole(parties_module.Machine(ratio=0.999))
    assert found["verdict"] == "NOT_REPLICATED", found["reason"]
    assert found["grows"] is False


@pytest.mark.parametrize(
    ("fields", "verdict", "says"),
    [
        ({"drift": 0.2}, "INVALID", "A/A"),
        ({"noise": 0.25}, "INVALID", "A/A"),
        ({"sees_salt": False}, "INVALID", "known delay"),
        ({"inert": True}, "INVALID", "no effect"),
        ({"tokens": 0.8}, "INVALID", "output lengths"),
        ({"same_output": False}, "NOT_REPLICATED", "outputs differ"),
        ({"ratio": 0.7}, "REPLICATED_SMALLER", "too large"),
        ({"hardware": {"cpu.model": "Other", "cpu.logical": 8}}, "NOT_COMPARABLE", "hardware"),
    ],
)
def test_how_a_review_can_end(
    begin: Callable[[], Whole],
    parties_module: ModuleType,
    fields: dict[str, Any],
    verdict: str,
    says: str,
) -> None:
    found = begin().whole(parties_module.Machine(**fields))
    assert found["verdict"] == verdict, found["reason"]
    assert says in found["reason"]
    assert found["grows"] is False


def test_a_confirmed_counterexample_inside_the_scope(begin: Callable[[], Whole]) -> None:
    cells = [
        {"cell": {"prompt_tokens": 16, "output_tokens": 6, "concurrency": 1}, "flip": True},
        {"cell": {"prompt_tokens": 999, "output_tokens": 6, "concurrency": 1}, "flip": True},
        {"cell": {"prompt_tokens": 16, "output_tokens": 6, "concurrency": 1}, "flip": False},
    ]
    found = begin().whole(search={**SEARCH, "confirmed": cells})
    assert found["verdict"] == "NOT_REPLICATED"
    assert (found["counterexamples"]["inside"], found["counterexamples"]["outside"]) == (1, 1)


def test_every_attempt_counts_crashed_ones_too(
    begin: Callable[[], Whole], parties_module: ModuleType
) -> None:
    review = begin()
    review.start()
    review.issue()
    review.do("reviewer", "accept", "--independent")
    assert review.replay(parties_module.Machine(crash_after=9)) == 4
    assert review.replay() == 0
    assert review.freeze("--deviation", "the first attempt lost its machine") == 0
    found = review.finish()
    assert [(a["status"], a["blocks"]) for a in found["attempts"]] == [("crashed", 2), ("completed", 6)]
    assert found["deviations"] == ["the first attempt lost its machine"]
    assert found["stall_bound"] == pytest.approx(1 - 0.05 ** (1 / 8))


def test_self_unblinding_is_recorded_and_lowers_the_level(
    begin: Callable[[], Whole], capsys: pytest.CaptureFixture[str]
) -> None:
    review = begin()
    review.start()
    review.issue()
    review.do("reviewer", "accept", "--independent")
    arm = sorted(review.packet().arms)[0]
    assert review.do("reviewer", "show-arm", arm) == 0
    assert "kv_cache.enabled" in capsys.readouterr().out
    review.replay()
    review.freeze()
    assert review.finish()["level"] == "L1"


def test_a_question_is_answered_by_a_new_packet_alone(begin: Callable[[], Whole]) -> None:
    review = begin()
    review.start()
    assert review.issue() == 0
    assert review.issue() == 2
    review.do("reviewer", "accept", "--independent")
    assert review.do("reviewer", "ask", "which tokeniser made the inputs?") == 0
    assert review.issue() == 0
    assert review.replay() == 2
    assert review.do("reviewer", "accept", "--independent") == 0
    review.replay()
    review.freeze()
    found = review.finish()
    assert found["verdict"] == "REPLICATED", found["reason"]
    assert found["questions"] == 1
    assert len(found["packets"]) == 2
    assert review.packet().packet["supersedes"] == found["packets"][0]


def test_key_lost(begin: Callable[[], Whole]) -> None:
    """The author is gone: the steward opens by escrow at the deadline, and not before."""
    review = begin()
    review.start()
    assert review.issue("--deadline-days", "0.0") == 0
    review.do("reviewer", "accept", "--independent")
    review.replay()
    review.freeze()
    shutil.rmtree(review.parties.folder / "author" / "keys" / "packets")
    assert review.do("author", "reveal") == 5
    assert review.do("steward", "reveal", "--lost", "gone") == 2
    assert review.do("steward", "reveal") == 0
    report = review.base / "search.json"
    report.write_text(json.dumps(SEARCH))
    assert review.do("reviewer", "challenge", "--report", report) == 0
    assert review.sign()["verdict"] == "REPLICATED"


def test_the_steward_waits_for_the_deadline(begin: Callable[[], Whole]) -> None:
    review = begin()
    review.start()
    review.issue()
    review.do("reviewer", "accept", "--independent")
    review.replay()
    review.freeze()
    assert review.do("steward", "reveal") == 2
    assert review.read("steward").state.reveal is None


def test_both_keys_lost_is_unadjudicable(begin: Callable[[], Whole], monkeypatch: pytest.MonkeyPatch) -> None:
    from counterproof_review.trust import seal

    review = begin()
    review.start()
    review.issue("--deadline-days", "0.0")
    review.do("reviewer", "accept", "--independent")
    review.replay()
    review.freeze()
    shutil.rmtree(review.parties.folder / "author" / "keys" / "packets")

    def no_box(*_: Any) -> Any:
        raise TrustError("E_ESCROW", "the steward's key does not open the box")

    monkeypatch.setattr(seal, "open_escrow", no_box)
    assert review.do("steward", "reveal") == 5
    assert review.do("steward", "reveal", "--lost", "the escrow key was destroyed") == 0
    found = review.sign()
    assert (found["verdict"], found["grows"]) == ("UNADJUDICABLE", False)
    assert found["attempts"][0]["status"] == "completed" and found["outputs"] is None
    assert all("seal was not opened" in found[f"{what}_sentence"] for what in ("outputs", "stall"))


def test_steps_out_of_turn_are_refused_and_write_nothing(begin: Callable[[], Whole]) -> None:
    review = begin()
    review.start()
    before = {r: len(e) for r, e in review.read("reviewer").ledgers.items()}
    assert review.do("reviewer", "accept", "--independent") == 2
    assert review.do("reviewer", "verdict") == 2
    assert review.do("author", "reveal") == 2
    assert {r: len(e) for r, e in review.read("reviewer").ledgers.items()} == before
    review.issue()
    assert review.do("reviewer", "accept") == 2
    assert review.replay() == 2
    review.do("reviewer", "accept", "--independent")
    assert review.do("author", "reveal") == 2
    review.replay()
    assert review.freeze() == 0
    assert review.freeze() == 2
    assert review.replay() == 2


def test_the_cold_replay_gate(begin: Callable[[], Whole], parties_module: ModuleType) -> None:
    """A packet that does not run from its file alone is not issued."""
    review = begin()
    review.start()
    review.machine = parties_module.Machine(crash_after=1)
    assert review.issue() == 4
    assert review.read("author").state.issues == ()
    assert not list((review.place["author"] / "packets").glob("*.zip"))


def test_a_store_that_hides_nothing_says_so(
    begin: Callable[[], Whole], capsys: pytest.CaptureFixture[str]
) -> None:
    review = begin()
    review.start()
    assert review.do("reviewer", "status") == 0
    assert "0 studies" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["keys"], ["review"], ["review", "freeze"], ["keys", "revoke"]):
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        assert "counterproof" in capsys.readouterr().out
