"""A whole review on a synthetic machine: every kind of entry that a ledger can have, but for a key that was lost."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from counterproof.measure.compare import compare
from counterproof.measure.load import load_study
from counterproof.record import atomic
from counterproof.record.journal import Journal
from counterproof.record.store import StudyPaths

SEARCH = {
    "confirmed": [
        {"cell": {"prompt_tokens": 999, "output_tokens": 6, "concurrency": 1}, "flip": True},
        {"cell": {"prompt_tokens": 16, "output_tokens": 6, "concurrency": 1}, "flip": False},
    ],
    "cells_tried": 12,
    "corners_not_tried": 3,
    "says": "1 confirmed in 12 cells",
}


@dataclass(frozen=True)
class Reviewed:
    """What is left: the parties (whose keys it was signed with), the study, and the one folder that all shared."""

    parties: Any
    study: Path
    folder: Path


def run(support: ModuleType, parties_module: ModuleType, model: Path, base: Path) -> Reviewed:
    """Preregister, commit, issue, ask, issue again, read an arm, replay, freeze, reveal, challenge, judge."""
    study = support.build(base / "store", model, equivalence=True)
    paths = StudyPaths(study)
    digest = atomic.write_json(paths.comparison, compare(load_study(study)))
    Journal(paths.journal).append("compared", sha256=digest)
    done = Reviewed(parties_module.Parties(base / "homes"), study, base / "review")
    variables = {"COUNTERPROOF_STORE": str(base / "store"), "INTAGLIO_MODELS": str(model.parent)}
    with mock.patch.dict(os.environ, variables), parties_module.Machine().working():
        _steps(done, base)
    return done


def _steps(done: Reviewed, base: Path) -> None:
    def step(role: str, name: str, *arguments: str | Path) -> None:
        code = done.parties.do(role, "review", name, *arguments, "--review", done.folder)
        if code:
            raise RuntimeError(f"{name} of the {role} ended with {code}")

    if done.parties.do("steward", "review", "init", done.folder, "--registry", done.parties.registry):
        raise RuntimeError("no review was begun")
    shutil.move(done.study / "runs", base / "later")
    step("author", "prereg", done.study.name, "--registered")
    step("reviewer", "commit")
    step("steward", "witness")
    shutil.move(base / "later", done.study / "runs")
    step("author", "issue", done.study.name)
    step("reviewer", "accept", "--independent")
    step("reviewer", "ask", "which tokeniser made the inputs?")
    step("author", "issue", done.study.name)
    step("reviewer", "accept", "--independent")
    arm = _arm(done)
    step("reviewer", "show-arm", arm)
    step("reviewer", "replay")
    step("reviewer", "freeze", "--guess", arm, "--confidence", "0.25", "--deviation", "none worth a word")
    step("author", "reveal")
    report = base / "search.json"
    report.write_text(json.dumps(SEARCH), encoding="utf-8")
    step("reviewer", "challenge", "--report", report)
    step("reviewer", "verdict")
    step("steward", "verdict")


def _arm(done: Reviewed) -> str:
    from counterproof_review.protocol import folder, outcome

    with done.parties.of("reviewer"):
        review = folder.read(done.folder)
        return min(outcome.packet_of(review, review.state.issues[-1].body["packet_id"]).arms)
