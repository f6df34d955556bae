"""An override as people make it: asked for by one, signed by a second, taken by the gate, once, and never for more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof.cli import main
from counterproof.decide.deploy.refusal import DeploymentRefusedError
from counterproof.run.deploy import change
from counterproof.run.deploy.change import Promotion
from counterproof_review.reviewer import InstalledReviewer

STUDY = "20260102-030405-kv_cache"
PEOPLE = (("ada", "author"), ("rex", "reviewer"))


@pytest.fixture
def signable(
    held: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """A study that lacks nothing but a drill, with a registry of three people, and signatures that are really checked."""
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(held.review, "override", InstalledReviewer().override)
    registry = held.store.root / "registry.dsse.json"
    for name in ("stella", *(name for name, _ in PEOPLE)):
        assert main(["keys", "new", name]) == 0
    assert main(["keys", "registry", "new", "--key", "stella", "--out", str(registry)]) == 0
    for name, role in PEOPLE:
        capsys.readouterr()
        assert main(["keys", "show", name]) == 0
        line = tmp_path / f"{name}.json"
        line.write_text(capsys.readouterr().out)
        add = ["keys", "registry", "add", str(registry), "--key", "stella", "--public", str(line)]
        assert main([*add, "--role", role]) == 0
    return held


@pytest.fixture
def asked(signable: Any, tmp_path: Path) -> Callable[..., Path]:
    """`asked("ada", "rex")` makes an override: the first asks, the others sign."""

    def make(first: str, *others: str, scope: str = "kv_cache") -> Path:
        path = tmp_path / f"{scope}.override.json"
        request = ["override", "request", STUDY, "--waive", "STALE_DRILL", "--scope", scope, "--days", "2"]
        why = ["--reason", "the drill machine is being repaired until Friday"]
        assert main([*request, *why, "--key", first, "--out", str(path)]) == 0
        for name in others:
            assert main(["override", "sign", str(path), "--key", name]) == 0
        return path

    return make


def codes(shelf: Any, **fields: Any) -> set[str]:
    with pytest.raises(DeploymentRefusedError) as caught:
        change.promote(shelf.store, Promotion(STUDY, **fields))
    return {refusal.code for refusal in caught.value.refusals}


def test_what_two_people_signed_promotes_until_its_end_and_once(
    signable: Any, asked: Callable[..., Path]
) -> None:
    assert codes(signable) == {"STALE_DRILL"}
    one = asked("ada")
    assert codes(signable, override=one) == {"OVERRIDE_SIGNERS", "STALE_DRILL"}
    one.unlink()
    two = asked("ada", "rex")
    event = change.promote(signable.store, Promotion(STUDY, override=two))
    assert event["ends_utc"] is not None
    entry = signable.ledger.read()[0]
    assert (entry["kind"], sorted(entry["signers"])) == ("override", ["ada", "rex"])
    change.roll_back(signable.store, "kv_cache", "")
    assert "OVERRIDE_USED" in codes(signable, override=two)
    # A third signature makes no other override of it.
    assert main(["override", "sign", str(two), "--key", "stella"]) == 0
    assert "OVERRIDE_USED" in codes(signable, override=two)


def test_it_widens_no_scope_and_stands_in_for_no_other_study(
    signable: Any, asked: Callable[..., Path]
) -> None:
    elsewhere = asked("ada", "rex", scope="elsewhere")
    assert "OVERRIDE_SUBJECT" in codes(signable, override=elsewhere)
    here = asked("rex", "stella")
    wider = {"concurrency": [1, 64]}
    assert codes(signable, override=here, limits=wider) == {"BEYOND_SCOPE"}
    assert signable.ledger.read() == ()


def test_an_edited_envelope_is_no_override(signable: Any, asked: Callable[..., Path]) -> None:
    path = asked("ada", "rex")
    envelope = json.loads(path.read_text())
    envelope["signatures"] = envelope["signatures"][:1] * 2
    path.write_text(json.dumps(envelope, sort_keys=True, separators=(",", ":")) + "\n")
    with pytest.raises(Exception, match="E_ENVELOPE"):
        change.promote(signable.store, Promotion(STUDY, override=path))
    assert signable.ledger.read() == ()
