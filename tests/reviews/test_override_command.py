"""`counterproof override`: a first signer asks, a second one signs, and a promotion takes what both have signed."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof.decide.deploy import override
from counterproof.record.verify import verify_plan
from counterproof_review.reviewer import InstalledReviewer
from counterproof_review.trust import dsse, keys, registry
from counterproof_review.trust.errors import TrustError

REASON = "the drill machine is being repaired until Friday"


@pytest.fixture
def parties(parties_module: ModuleType, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three people with a store that holds the study and the registry."""
    found = parties_module.Parties(tmp_path / "homes")
    found.store = tmp_path / "store"
    shutil.copytree(study, found.store / "studies" / study.name)
    shutil.copy(found.registry, found.store / "registry.dsse.json")
    found.study, found.file = study.name, tmp_path / "override.json"
    monkeypatch.setenv("COUNTERPROOF_STORE", str(found.store))
    return found


def request(parties: Any, role: str = "author", *more: str, reason: str = REASON) -> int:
    asked = ("override", "request", parties.study, "--waive", "STALE_DRILL", "--reason", reason)
    return parties.do(role, *asked, "--out", parties.file, *more)


def faults(parties: Any) -> list[str]:
    """Why the gate would not take it, as codes."""
    plan, digest, _ = verify_plan(study_of(parties))
    with parties.of("author"):
        signed = InstalledReviewer().override(parties.store, parties.file)
    now = datetime.datetime.now(datetime.UTC)
    return [one.code for one in override.faults(signed, plan, digest, str(plan["experiment"]), now)]


def study_of(parties: Any) -> Any:
    from counterproof.record.store import Store

    return Store(parties.store).study(parties.study)


def test_two_people_sign_what_the_gate_takes(parties: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert request(parties) == 0
    assert faults(parties) == ["OVERRIDE_SIGNERS"]
    assert parties.do("steward", "override", "show", parties.file) == 2  # one signature is not enough
    capsys.readouterr()
    assert parties.do("reviewer", "override", "sign", parties.file) == 0
    shown = capsys.readouterr()
    assert REASON in shown.out  # who signs sees what
    assert "counterproof promote" in shown.err
    assert faults(parties) == []
    with parties.of("steward"):
        signed = InstalledReviewer().override(parties.store, parties.file)
    assert set(signed.signers) == {"key-of-author", "key-of-reviewer"}
    assert (signed.waives, signed.reason) == (("STALE_DRILL",), REASON)
    assert parties.do("steward", "override", "show", parties.file) == 0


def test_nobody_signs_twice_and_a_third_signature_makes_no_other_override(parties: Any) -> None:
    assert request(parties) == 0
    before = parties.file.read_bytes()
    assert parties.do("author", "override", "sign", parties.file) == 2
    assert parties.file.read_bytes() == before
    known = registry.read(parties.registry.read_bytes(), parties.keys["steward"].key_id)
    with pytest.raises(TrustError, match="has signed this already"):
        dsse.countersign(before, known.keys, parties.keys["author"].sign)
    assert parties.do("reviewer", "override", "sign", parties.file) == 0
    with parties.of("author"):
        two = InstalledReviewer().override(parties.store, parties.file).sha256
    assert parties.do("steward", "override", "sign", parties.file) == 0
    with parties.of("author"):
        three = InstalledReviewer().override(parties.store, parties.file)
    assert len(three.signers) == 3
    assert three.sha256 == two  # "counts once" cannot be got round


@pytest.mark.parametrize(
    ("more", "reason", "code"),
    [
        (("--waive", "NOT_REPLICATED"), REASON, 2),
        (("--waive", "BEYOND_SCOPE"), REASON, 2),
        (("--days", "31"), REASON, 2),
        (("--days", "0"), REASON, 2),
        (("--scope", "No Scope"), REASON, 2),
        ((), "because", 2),
        (("--key", "key-of-nobody"), REASON, 3),
    ],
)
def test_what_would_count_for_nothing_is_not_signed(
    parties: Any, more: tuple[str, ...], reason: str, code: int
) -> None:
    if more[:1] == ("--waive",):
        with pytest.raises(SystemExit) as caught:
            request(parties, "author", *more, reason=reason)
        assert caught.value.code == code
    else:
        assert request(parties, "author", *more, reason=reason) == code
    assert not parties.file.exists()


def test_a_stranger_and_a_revoked_key_sign_nothing(parties: Any) -> None:
    assert request(parties) == 0
    before = parties.file.read_bytes()
    with parties.of("reviewer"):
        keys.new("stranger")
    assert parties.do("reviewer", "override", "sign", parties.file, "--key", "stranger") == 5
    steward, reviewer = parties.keys["steward"], parties.keys["reviewer"]
    known = registry.read(parties.registry.read_bytes(), steward.key_id)
    (parties.store / "registry.dsse.json").write_bytes(registry.revoke(known, steward, reviewer.key_id, 0))
    assert parties.do("reviewer", "override", "sign", parties.file) == 5
    assert parties.file.read_bytes() == before


def test_an_edited_request_is_not_signed(parties: Any) -> None:
    assert request(parties) == 0
    data = parties.file.read_bytes()
    parties.file.write_bytes(data.replace(b'"payload":"', b'"payload":"A', 1))
    assert parties.do("reviewer", "override", "sign", parties.file) == 5
    assert parties.do("reviewer", "override", "sign", parties.file.with_name("absent.json")) == 2
    parties.file.write_bytes(data)
    assert request(parties) == 2  # it never writes over a file
    assert parties.file.read_bytes() == data
