"""A verdict counts for the plan it was given about, and for no other: neither attached to it nor read beside it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from counterproof_review.protocol import folder, lookup
from counterproof_review.protocol.events import REVIEWER, STEWARD
from counterproof_review.trust.errors import TrustError

PLANS = {"h1": b'{"hypothesis": 1}\n', "h2": b'{"hypothesis": 2}\n'}


def digest(name: str) -> str:
    return hashlib.sha256(PLANS[name]).hexdigest()


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two studies of two plans. Beside each lies the same finished review: it replicated h2."""
    made = {}
    for name, plan in PLANS.items():
        made[name] = tmp_path / name
        (made[name] / lookup.NAME).mkdir(parents=True)
        (made[name] / "plan.json").write_bytes(plan)
    signed = [SimpleNamespace(role=role, body={"sha256": "0" * 64}) for role in (REVIEWER, STEWARD)]
    issue = SimpleNamespace(body={"claim_id": digest("h2")})
    review: Any = SimpleNamespace(
        state=SimpleNamespace(issue=issue, verdicts=signed), registry=SimpleNamespace(entries=())
    )
    monkeypatch.setattr(folder, "read", lambda place: review)
    content = {
        "verdict": "REPLICATED",
        "reason": "inside the band",
        "counterexamples": {"searched": True, "inside": 0},
    }
    monkeypatch.setattr(lookup.outcome, "compute", lambda found: content)
    data = lookup.outcome.encode(content)
    for event in signed:
        event.body["sha256"] = hashlib.sha256(data).hexdigest()
    for study in made.values():
        (study / lookup.NAME / folder.VERDICT).write_bytes(data)
    return made


def test_a_verdict_stands_beside_its_own_plan_alone(studies: dict[str, Path]) -> None:
    own = lookup.standing_of(studies["h2"])
    assert (own.verdict, own.open_counterexamples) == ("REPLICATED", 0)
    with pytest.raises(TrustError, match="another plan than this study's"):
        lookup.standing_of(studies["h1"])


def test_a_plan_that_was_changed_afterwards_has_lost_its_verdict(studies: dict[str, Path]) -> None:
    (studies["h2"] / "plan.json").write_bytes(PLANS["h2"].replace(b"2", b"3"))
    with pytest.raises(TrustError, match="another plan than this study's"):
        lookup.standing_of(studies["h2"])


@pytest.mark.parametrize("there", [False, True])
def test_a_review_of_another_plan_cannot_be_attached(
    studies: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    study = studies["h1"]
    if not there:
        for path in (study / lookup.NAME).iterdir():
            path.unlink()
        (study / lookup.NAME).rmdir()
    monkeypatch.setattr(lookup.bundle, "merge", lambda place, source: place.mkdir(exist_ok=True))
    with pytest.raises(TrustError, match="another plan than this study's"):
        lookup.attach(study, tmp_path / "bundle.zip")
    assert (study / lookup.NAME).exists() is there  # nothing half is kept, nothing older is lost
    monkeypatch.setattr(lookup.bundle, "merge", lambda place, source: None)
    assert lookup.attach(studies["h2"], tmp_path / "bundle.zip") == studies["h2"] / lookup.NAME
