"""`counterproof keys`: files for their owner alone, a registry that only its steward changes, revocation, trust."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from counterproof.cli import main
from counterproof_review.protocol import folder, people
from counterproof_review.trust import keys, private, registry
from counterproof_review.trust.errors import TrustError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "keys"
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(place))
    monkeypatch.setenv("HOME", str(tmp_path))
    return place


@pytest.fixture
def book(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A registry with a steward, an author and a reviewer, made by commands alone."""
    path = tmp_path / "registry.dsse.json"
    for name in ("stella", "ada", "rex"):
        assert main(["keys", "new", name]) == 0
    assert main(["keys", "registry", "new", "--key", "stella", "--out", str(path)]) == 0
    for name, role in (("ada", "author"), ("rex", "reviewer")):
        capsys.readouterr()
        assert main(["keys", "show", name]) == 0
        line = tmp_path / f"{name}.public.json"
        line.write_text(capsys.readouterr().out)
        add = ["keys", "registry", "add", str(path), "--key", "stella", "--public", str(line), "--role", role]
        assert main(add) == 0
    return path


def test_keys_are_for_their_owner_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "ada"]) == 0
    (path,) = home.glob("*.key.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    secret = json.loads(path.read_text())["sign"]
    capsys.readouterr()
    assert main(["keys", "list"]) == 0
    assert main(["keys", "show", "ada"]) == 0
    shown = capsys.readouterr().out
    assert keys.load("ada").key_id in shown
    assert secret not in shown


def test_keys_never_lie_in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(tmp_path / "repo" / "keys"))
    assert main(["keys", "new", "ada"]) == 3


def test_a_registry_is_made_extended_and_shown(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = folder.read_registry(book)
    assert found.version == 3
    assert {(e.name, e.role) for e in found.entries} == {
        ("stella", "steward"),
        ("ada", "author"),
        ("rex", "reviewer"),
    }
    capsys.readouterr()
    assert main(["keys", "registry", "show", str(book)]) == 0
    assert "reviewer" in capsys.readouterr().out


def test_only_the_steward_changes_a_registry(book: Path, tmp_path: Path) -> None:
    before = book.read_bytes()
    line = tmp_path / "rex.public.json"
    argv = ["keys", "registry", "add", str(book), "--key", "ada", "--public", str(line), "--role", "steward"]
    assert main(argv) == 5
    assert main(["keys", "revoke", str(book), keys.load("rex").key_id, "--key", "ada", "--at", "0"]) == 5
    assert book.read_bytes() == before


def test_one_key_has_one_role(book: Path, tmp_path: Path) -> None:
    line = tmp_path / "ada.public.json"
    argv = [
        "keys",
        "registry",
        "add",
        str(book),
        "--key",
        "stella",
        "--public",
        str(line),
        "--role",
        "reviewer",
    ]
    assert main(argv) == 5


def test_revoke(book: Path) -> None:
    ada = keys.load("ada").key_id
    assert main(["keys", "revoke", str(book), ada[:12], "--key", "stella", "--at", "3"]) == 0
    found = folder.read_registry(book)
    assert found.require(ada, "author", 2).revoked_at == 3
    with pytest.raises(TrustError, match="E_KEY_REVOKED"):
        found.require(ada, "author", 3)
    assert main(["keys", "revoke", str(book), ada, "--key", "stella", "--at", "9"]) == 5
    assert main(["keys", "revoke", str(book), "abc", "--key", "stella", "--at", "9"]) == 2


def test_a_registry_of_somebody_untrusted_is_refused(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steward = keys.load("stella").key_id
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(tmp_path / "elsewhere"))
    with pytest.raises(TrustError, match="no steward is trusted"):
        folder.read_registry(book)
    private.trust("0" * 64)
    with pytest.raises(TrustError, match="E_REGISTRY"):
        folder.read_registry(book)
    assert main(["keys", "trust", steward]) == 0
    assert folder.read_registry(book).steward == steward


def test_a_registry_needs_its_own_key_in_it(book: Path) -> None:
    with pytest.raises(TrustError):
        registry.read(book.read_bytes(), keys.load("ada").key_id)


# -- who is one of the people of a record -----------------------------------------------------------------


def test_people_of_a_record_are_its_user_its_key_and_whoever_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "ada-user")
    monkeypatch.setenv("LOGNAME", "ada-user")
    pair = keys.new("ada")
    repo = tmp_path / "code"
    repo.mkdir()
    who = ["-c", "user.name=Grace Writer", "-c", "user.email=grace@example.org"]
    for argv in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", str(repo), *argv], check=True, timeout=60)
    found = people.of_record(pair, repo)
    assert {"ada-user", pair.key_id, "ada", "Grace Writer", "grace@example.org"} <= found


def test_digests_are_bound_to_the_packet_and_leave_generic_accounts_out() -> None:
    one = people.digests("1" * 16, ["Grace@Example.org ", "root", ""])
    assert one == people.digests("1" * 16, ["grace@example.org"])
    assert one != people.digests("2" * 16, ["grace@example.org"])
    assert len(one) == 1
