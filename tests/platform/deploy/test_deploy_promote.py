"""Promotion, rollback and every reason to refuse one."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from counterproof.decide.deploy import reviewer
from counterproof.decide.deploy.refusal import DeploymentRefusedError
from counterproof.errors import EvidenceError, InputError, SetupError
from counterproof.record import canonical, code_identity
from counterproof.record.deployment_state import fold
from counterproof.run.deploy import change
from counterproof.run.deploy.change import Promotion

STUDY = "20260102-030405-kv_cache"
NOW = datetime.datetime.now(datetime.UTC)


def codes(shelf: Any, **asked: Any) -> list[str]:
    """The codes of what refuses this promotion; nothing was written."""
    before = shelf.ledger.read()
    with pytest.raises(DeploymentRefusedError) as caught:
        change.promote(shelf.store, Promotion(STUDY, **asked))
    assert shelf.ledger.read() == before
    return [refusal.code for refusal in caught.value.refusals]


def test_promote_then_rollback_changes_what_serves_and_is_witnessed(promotable: Any) -> None:
    event = change.promote(promotable.store, Promotion(STUDY))
    state = fold(promotable.ledger.read())["kv_cache"]
    assert state.champion(NOW).seq == event["seq"]
    assert state.champion(NOW).config["kv_cache.enabled"] is True
    assert state.previous(NOW) == state.baseline
    assert state.baseline.config["kv_cache.enabled"] is False
    assert state.champion(NOW).box["prompt_tokens"] == [12, 20]
    assert event["decision_sha256"] == canonical.sha256_file(promotable.paths.decision)
    back = change.roll_back(promotable.store, "kv_cache", "p99 above its trigger")
    state = fold(promotable.ledger.read())["kv_cache"]
    assert (state.champion(NOW), state.previous(NOW)) == (state.baseline, None)
    assert (back["from_seq"], back["to_seq"], back["reason"]) == (
        event["seq"],
        None,
        "p99 above its trigger",
    )
    witnessed = [e for e in _journal(promotable) if e["kind"] == "deployed"]
    assert [e["action"] for e in witnessed] == ["promoted", "rolled_back"]
    assert [e["ledger_hash"] for e in witnessed] == [event["hash"], back["hash"]]
    with pytest.raises(DeploymentRefusedError, match="rollback of kv_cache"):
        change.roll_back(promotable.store, "kv_cache", "again")


def _journal(shelf: Any) -> list[dict[str, Any]]:
    from counterproof.record import journal

    return list(journal.read(shelf.paths.journal).events)


@pytest.mark.parametrize(
    "verdict",
    ["REPLICATED_SMALLER", "CONSISTENT_IMPRECISE", "NOT_REPLICATED", "INCONCLUSIVE", "INVALID", "NO_REVIEW"],
)
def test_no_other_verdict_than_replicated_promotes(promotable: Any, verdict: str) -> None:
    promotable.review.finding_now = reviewer.Finding(verdict, "seen by the reviewer", 0)
    assert codes(promotable) == ["NOT_REPLICATED"]


@pytest.mark.parametrize("number", [1, None])
def test_open_counterexamples_and_an_unsearched_space_refuse(promotable: Any, number: int | None) -> None:
    promotable.review.finding_now = replace(promotable.review.finding_now, open_counterexamples=number)
    assert codes(promotable) == ["COUNTEREXAMPLES"]


def test_without_a_package_that_checks_reviews_nothing_is_promoted(
    promotable: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviewer, "installed", lambda: None)
    assert codes(promotable) == ["NOT_REPLICATED", "COUNTEREXAMPLES"]


@pytest.mark.parametrize(
    ("limits", "where"),
    [
        ({"prompt_tokens": [1, 16]}, "prompt_tokens: shown from 12 to 20, asked from 1 to 16"),
        ({"output_tokens": [1, 4000]}, "output_tokens"),
        ({"concurrency": [1, 8]}, "concurrency"),
        ({"dtype": "bf16"}, "dtype"),
        ({"hardware": {"cpu_model": "another"}}, "hardware"),
        ({"model_sha256": "2" * 64}, "model_sha256"),
    ],
)
def test_beyond_the_scope_that_was_shown_nothing_is_promoted(
    promotable: Any, limits: dict[str, Any], where: str
) -> None:
    with pytest.raises(DeploymentRefusedError) as caught:
        change.promote(promotable.store, Promotion(STUDY, limits=limits))
    assert [refusal.code for refusal in caught.value.refusals] == ["BEYOND_SCOPE"]
    assert where in caught.value.details[0]


def test_expired_evidence_is_refused(promotable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _later(monkeypatch, days=31)
    assert codes(promotable) == ["EXPIRED", "STALE_DRILL"]
    _later(monkeypatch, days=15)
    # The synthetic evidence was sealed now, so that only the drill is too old after 15 days.
    assert codes(promotable) == ["STALE_DRILL"]


def _later(monkeypatch: pytest.MonkeyPatch, *, days: float) -> None:
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return NOW.astimezone(tz) + datetime.timedelta(days=days)

    monkeypatch.setattr(change.datetime, "datetime", Clock)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"passed": False, "reason": "3 of 40 requests failed"}, "3 of 40 requests failed"),
        ({"code": {"kind": "git", "sha": "1" * 40, "dirty_sha256": ""}}, "other code"),
        ({"code": {"kind": "git", "sha": "0" * 40, "dirty_sha256": "2" * 64}}, "other code"),
        ({"plan_sha256": "3" * 64}, "another plan"),
    ],
)
def test_a_drill_that_is_worth_nothing_is_refused(promotable: Any, fields: dict[str, Any], why: str) -> None:
    promotable.drilled(**fields)  # the newest drill counts, not the best
    with pytest.raises(DeploymentRefusedError) as caught:
        change.promote(promotable.store, Promotion(STUDY))
    assert [refusal.code for refusal in caught.value.refusals] == ["STALE_DRILL"]
    assert why in caught.value.refusals[0].reason


def test_a_study_that_was_never_drilled_is_held_and_refused(shelf: Any) -> None:
    decision = shelf.judged()
    assert decision["decision"] == "HOLD"
    assert "rollback drill fresh" in decision["trace"][3]["because"]
    assert set(codes(shelf)) == {"STALE_DRILL"}
    shelf.drilled()
    assert codes(shelf) == ["NOT_DECIDED"]  # until it is judged anew
    assert shelf.judged()["decision"] == "PROMOTE"
    change.promote(shelf.store, Promotion(STUDY))


def test_a_decision_that_says_hold_is_refused_for_good(shelf: Any) -> None:
    shelf.drilled()
    shelf.review.finding_now = reviewer.Finding("INCONCLUSIVE", "too few blocks", 0)
    assert shelf.judged()["decision"] == "HOLD"
    assert codes(shelf) == ["NOT_DECIDED", "NOT_REPLICATED"]


def test_an_edited_decision_is_refused(promotable: Any, edited: Callable[..., None]) -> None:
    edited(promotable.paths.decision, lambda d: d["scope"].update(prompt_tokens=[1, 100_000]))
    with pytest.raises(EvidenceError, match=r"decision\.json .* was changed after it was written"):
        change.promote(promotable.store, Promotion(STUDY))
    assert [e["kind"] for e in promotable.ledger.read()] == ["drilled"]


def test_a_study_without_a_decision_is_refused(shelf: Any) -> None:
    with pytest.raises(InputError, match="has no decision yet"):
        change.promote(shelf.store, Promotion(STUDY))


def test_other_code_than_was_measured_is_refused(promotable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = code_identity.CodeIdentity("git", "5" * 40)
    monkeypatch.setattr(code_identity, "identify", lambda: moved)
    assert codes(promotable) == ["OTHER_CODE"]


def test_what_serves_already_and_what_was_compared_with_something_else_are_refused(promotable: Any) -> None:
    event = change.promote(promotable.store, Promotion(STUDY))
    assert codes(promotable) == ["SERVES_ALREADY"]
    other = {**event["config"], "scheduler.max_running": 3}
    fields = {k: v for k, v in event.items() if k not in ("seq", "prev", "time_utc", "kind", "hash")}
    step = {
        "baseline_config": event["config"],
        "baseline_sha256": event["config_sha256"],
        "config": other,
        "config_sha256": canonical.sha256_json(other),
        "study": "another-study",
    }
    promotable.ledger.append("promoted", **{**fields, **step})
    assert codes(promotable) == ["OTHER_BASELINE"]
    # Two steps up, two steps down, each to what served before.
    change.roll_back(promotable.store, "kv_cache", "")
    assert fold(promotable.ledger.read())["kv_cache"].champion(NOW).seq == event["seq"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"signers": ("alice",)}, "OVERRIDE_SIGNERS"),
        ({"signers": ("alice", "alice")}, "OVERRIDE_SIGNERS"),
        ({"reason": "  "}, "OVERRIDE_REASON"),
        ({"expires_utc": "2026-01-01T00:00:00Z"}, "OVERRIDE_EXPIRY"),
        ({"expires_utc": "2999-01-01T00:00:00Z"}, "OVERRIDE_EXPIRY"),
        ({"expires_utc": "soon"}, "OVERRIDE_EXPIRY"),
        ({"scope": "another"}, "OVERRIDE_SUBJECT"),
        ({"study": "another"}, "OVERRIDE_SUBJECT"),
        ({"plan_sha256": "0" * 64}, "OVERRIDE_SUBJECT"),
        ({"waives": ()}, "OVERRIDE_REACH"),
        ({"waives": ("STALE_DRILL", "NOT_REPLICATED")}, "OVERRIDE_REACH"),
        ({"waives": ("BEYOND_SCOPE",)}, "OVERRIDE_REACH"),
    ],
)
def test_an_override_with_a_fault_counts_for_nothing(held: Any, fields: dict[str, Any], code: str) -> None:
    held.signed(**fields)
    assert codes(held, override=Path("override.json"))[0] == code
    assert "STALE_DRILL" in codes(held, override=Path("override.json"))


def test_an_override_stands_in_for_the_drill_until_its_end(held: Any) -> None:
    signed = held.signed()
    event = change.promote(held.store, Promotion(STUDY, override=Path("override.json")))
    kinds = [e["kind"] for e in held.ledger.read()]
    assert kinds == ["override", "promoted"]
    assert (event["ends_utc"], event["override_sha256"]) == (signed.expires_utc, signed.sha256)
    assert held.ledger.read()[0]["signers"] == ["alice", "bob"]
    state = fold(held.ledger.read())["kv_cache"]
    end = datetime.datetime.fromisoformat(signed.expires_utc)
    assert state.champion(NOW).seq == event["seq"]
    # Its time over, the baseline serves, whether or not anybody wrote that down.
    assert state.champion(end) == state.baseline
    assert [served.seq for served in state.overdue(end)] == [event["seq"]]
    change.roll_back(held.store, "kv_cache", "")
    assert "OVERRIDE_USED" in codes(held, override=Path("override.json"))


def test_an_override_needs_no_more_than_it_names(held: Any) -> None:
    held.signed(waives=("EXPIRED",))
    assert set(codes(held, override=Path("override.json"))) == {"STALE_DRILL"}


@pytest.mark.parametrize(
    ("finding", "limits", "left"),
    [
        (reviewer.Finding("INCONCLUSIVE", "too few", 0), None, {"NOT_REPLICATED"}),
        (reviewer.Finding("REPLICATED", "", 2), None, {"COUNTEREXAMPLES"}),
        (reviewer.Finding("REPLICATED", "", 0), {"concurrency": [1, 64]}, {"BEYOND_SCOPE"}),
    ],
)
def test_an_override_is_never_evidence_and_never_widens(
    held: Any, finding: reviewer.Finding, limits: dict[str, Any] | None, left: set[str]
) -> None:
    held.signed()
    held.review.finding_now = finding
    assert set(codes(held, limits=limits, override=Path("override.json"))) == left


def test_an_override_that_nobody_can_check_is_refused(
    promotable: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviewer, "installed", lambda: None)
    with pytest.raises(SetupError, match="no package that checks signatures"):
        change.promote(promotable.store, Promotion(STUDY, override=Path("override.json")))


def test_ends_are_written_down_once(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held.signed()
    event = change.promote(held.store, Promotion(STUDY, override=Path("override.json")))
    assert change.write_ends(held.store, "kv_cache") == []
    _later(monkeypatch, days=8)
    (ended,) = change.write_ends(held.store, "kv_cache")
    assert (ended["kind"], ended["from_seq"]) == ("expired", event["seq"])
    assert change.write_ends(held.store, "kv_cache") == []
    assert fold(held.ledger.read())["kv_cache"].stack == ()


@pytest.mark.parametrize("name", ["", "Chat", "../x", "a b"])
def test_a_name_that_is_no_name_is_refused(promotable: Any, name: str) -> None:
    if name:
        with pytest.raises(InputError, match="cannot name a scope"):
            change.promote(promotable.store, Promotion(STUDY, scope=name))
    with pytest.raises(InputError, match="nothing was ever promoted"):
        change.roll_back(promotable.store, name, "")
