"""What the harness asks of this package: a study's standing, and overrides whose every signature holds."""

from __future__ import annotations

import importlib.metadata
import shutil
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof_review.reviewer import InstalledReviewer, sign_override
from counterproof_review.trust import dsse, keys, registry
from counterproof_review.trust.errors import TrustError

CONTENT = {
    "study": "s",
    "plan_sha256": "a" * 64,
    "scope": "smollm2-135m on this host",
    "waives": ["EXPIRED"],
    "reason": "the drill machine is being repaired until Friday",
    "expires_utc": "2026-02-01T00:00:00Z",
}


@pytest.fixture
def parties(parties_module: ModuleType, tmp_path: Path) -> Any:
    return parties_module.Parties(tmp_path / "homes")


@pytest.fixture
def store(parties: Any, tmp_path: Path) -> Path:
    place = tmp_path / "store"
    place.mkdir()
    shutil.copy(parties.registry, place / "registry.dsse.json")
    return place


def file_of(data: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "override.dsse.json"
    path.write_bytes(data)
    return path


def test_the_project_offers_it_under_the_group_that_is_asked(repository: Path) -> None:
    from counterproof.decide.deploy.reviewer import GROUP

    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"][GROUP].items()
    assert importlib.metadata.EntryPoint(name, value, GROUP).load() is InstalledReviewer


def test_a_study_that_nobody_reviewed(study: Path) -> None:
    found = InstalledReviewer().finding(study)
    assert (found.verdict, found.open_counterexamples, found.sha256) == ("NO_REVIEW", None, None)


def test_an_override_tells_who_signed_it(parties: Any, store: Path, tmp_path: Path) -> None:
    path = file_of(sign_override(CONTENT, [parties.keys["author"], parties.keys["steward"]]), tmp_path)
    with parties.of("author"):
        found = InstalledReviewer().override(store, path)
    assert set(found.signers) == {"key-of-author", "key-of-steward"}
    assert (found.study, found.waives, found.reason) == ("s", ("EXPIRED",), CONTENT["reason"])


def test_one_key_signs_once(parties: Any, store: Path, tmp_path: Path) -> None:
    """Two signatures by one key are no second person."""
    author = parties.keys["author"]
    path = file_of(sign_override(CONTENT, [author, author]), tmp_path)
    with parties.of("author"), pytest.raises(TrustError, match="E_ENVELOPE"):
        InstalledReviewer().override(store, path)


def test_an_override_of_a_stranger_or_a_revoked_key(parties: Any, store: Path, tmp_path: Path) -> None:
    with parties.of("author"):
        path = file_of(sign_override(CONTENT, [keys.new("stranger")]), tmp_path)
        with pytest.raises(TrustError, match="E_KEY_UNKNOWN"):
            InstalledReviewer().override(store, path)
        steward, author = parties.keys["steward"], parties.keys["author"]
        known = registry.read(parties.registry.read_bytes(), steward.key_id)
        (store / "registry.dsse.json").write_bytes(registry.revoke(known, steward, author.key_id, 0))
        path = file_of(sign_override(CONTENT, [author, steward]), tmp_path)
        with pytest.raises(TrustError, match="E_KEY_REVOKED"):
            InstalledReviewer().override(store, path)


@pytest.mark.parametrize("change", [{"waives": "EXPIRED"}, {"extra": 1}, {"reason": 3}])
def test_an_override_of_another_form(
    parties: Any, store: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = file_of(sign_override(CONTENT | change, [parties.keys["author"]]), tmp_path)
    with parties.of("author"), pytest.raises(TrustError, match="E_STATEMENT"):
        InstalledReviewer().override(store, path)


def test_a_valid_signature_over_something_else_is_no_override(
    parties: Any, store: Path, tmp_path: Path
) -> None:
    other = dsse.statement("urn:counterproof:ledger:1", {"x": "0" * 64}, CONTENT)
    path = file_of(dsse.sign(other, [parties.keys["author"].sign]), tmp_path)
    with parties.of("author"), pytest.raises(TrustError, match="E_STATEMENT"):
        InstalledReviewer().override(store, path)
