"""The sealed form: nothing public depends on results, equal sizes, one signature over it all, and four arms at least."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof_review.packet import canonical, layout, sealing
from counterproof_review.packet.build import Built, build
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.sealing import Sealing, Secrets
from counterproof_review.packet.verify import Verification
from counterproof_review.trust import keys as key_files
from counterproof_review.trust import seal
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair

SECRETS = Secrets(bytes(range(32)))
SEALED_ARMS = ("baseline", "candidate", "again", "slowed")


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KeyPair]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNTERPROOF_KEYS", str(tmp_path_factory.mktemp("keys")))
        return {name: key_files.new(name) for name in ("author", "steward", "other")}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(home))


def of(people: dict[str, KeyPair]) -> Sealing:
    return Sealing(SECRETS, people["author"], {people["steward"].key_id: people["steward"].seal_public})


@pytest.fixture(scope="module")
def sealed(study: Path, people: Any, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNTERPROOF_KEYS", str(home))
        return build(study, out=tmp_path_factory.mktemp("sealed") / "p.rep.zip", sealed=of(people))


def content(path: Path) -> dict[str, bytes]:
    with Archive.open(path) as opened:
        return {name: opened.read(name, 1 << 30) for name in opened.members}


@pytest.fixture
def parts(sealed: Built, members: Any) -> Any:
    """The sealed packet's files, free to be edited."""
    members.files = content(sealed.path)
    return members


def test_noninterference(support: ModuleType, fake_model: Path, people: Any, tmp_path: Path) -> None:
    """Two studies that differ in what the candidate gained, and in its direction: equal but for seal and digests."""
    packets = []
    for name, ratio in (("fast", 0.5), ("slow", 1.3)):
        folder = support.build(tmp_path / name, fake_model, decode_ratio=ratio)
        packets.append(content(build(folder, sealed=of(people)).path))
    first, second = packets
    assert list(first) == list(second)
    moved = {name for name in first if first[name] != second[name]}
    assert moved == {layout.SEALED, layout.MANIFEST, layout.SIGNATURE}
    assert [len(first[name]) for name in first] == [len(second[name]) for name in second]
    lines = [set(files[layout.MANIFEST].splitlines()) for files in packets]
    assert len(lines[0] - lines[1]) == 1
    assert b"sealed/" in next(iter(lines[0] - lines[1]))


def test_label_swap(support: ModuleType, fake_model: Path, people: Any, tmp_path: Path) -> None:
    """Which arm is which moves nothing but names: order, times, sizes and compression carry no role."""
    folder = support.build(tmp_path / "study", fake_model)
    shown = []
    for master in (SECRETS.master, bytes(32), bytes([7] * 32)):
        sealed = Sealing(Secrets(master), people["author"], of(people).escrow)
        path = build(folder, out=tmp_path / f"{master[0]}{master[1]}.rep.zip", sealed=sealed).path
        with zipfile.ZipFile(path) as packet:
            infos = [i for i in packet.infolist() if i.filename.startswith(layout.ARMS)]
        shown.append({(i.file_size, i.date_time, i.compress_type, i.external_attr) for i in infos})
        assert len(infos) == len(SEALED_ARMS)
        assert len(shown[-1]) == 1
    assert shown[0] == shown[1] == shown[2]


def test_nothing_readable_names_results_or_arms(sealed: Built) -> None:
    files = content(sealed.path)
    assert not any(name.startswith("results/") for name in files)
    whole = b"".join(files.values()).lower()
    for word in (b'"baseline"', b'"candidate"', b'"slowed"', b"per_block", b"log_ratios", b'"better"'):
        assert word not in whole
    assert sealed.verification.signature is not None
    assert sealed.verification.packet["blinding_level"] == "L3"


def test_equal_secrets_give_equal_bytes(study: Path, people: Any, sealed: Built, tmp_path: Path) -> None:
    again = build(study, out=tmp_path / "q.rep.zip", sealed=of(people))
    assert again.path.read_bytes() == sealed.path.read_bytes()
    data = sealed.path.read_bytes()
    for secret in (SECRETS.master, SECRETS.seal.key, SECRETS.seal.salt, SECRETS.packet.label_key):
        assert secret not in data
        assert secret.hex().encode() not in data


def test_one_nonce_never_serves_two_texts() -> None:
    assert SECRETS.nonce(b"one") != SECRETS.nonce(b"two")
    assert SECRETS.nonce(b"one") == SECRETS.nonce(b"one")


def test_the_steward_opens_what_the_author_sealed(sealed: Built, people: Any) -> None:
    document = content(sealed.path)[layout.SEALED]
    steward = people["steward"]
    keys = seal.open_escrow(document, steward.key_id, steward.seal)
    assert keys == SECRETS.seal
    text = seal.open_seal(document, sealed.packet_id, keys)
    found = sealing.read_content(text, sealed.packet_id, set(sealed.verification.arms), 6)
    assert set(found["arms"]) == set(SEALED_ARMS)
    assert found["salt"]["delay_us"] == 5_000
    assert sealing.read_secrets(sealed.packet_id) == SECRETS


@pytest.mark.parametrize(
    "change",
    [
        {"packet_id": "0" * 16},
        {"label_key": "00" * 32},
        {"schema": "other/1"},
        {"per_block": {"x": [1.0]}},
    ],
)
def test_an_opened_text_about_something_else_is_refused(sealed: Built, change: dict[str, Any]) -> None:
    document = content(sealed.path)[layout.SEALED]
    text = json.loads(seal.open_seal(document, sealed.packet_id, SECRETS.seal))
    with pytest.raises(TrustError, match="E_SEAL"):
        sealing.read_content(
            canonical.encode(text | change), sealed.packet_id, set(sealed.verification.arms), 6
        )


def test_results_that_do_not_fit_their_fixed_size_are_refused(people: Any) -> None:
    with pytest.raises(TrustError, match="E_SEAL"):
        sealing.sealed_bytes(of(people), {"runs": [], "text": "x" * sealing.BASE_BYTES})


# -- what a forger changes --------------------------------------------------------------------------------


def test_a_packet_whose_manifest_was_rewritten_is_not_the_signed_one(parts: Any) -> None:
    parts.edit(layout.PREREG, lambda d: d.update(exclusions="whatever does not fit"))
    parts.files["MANIFEST.jsonl"] = _manifest(parts.files)
    assert parts.refusal(honest_manifest=False).code == "E_SIGNATURE"


def test_a_seal_of_another_packet(parts: Any, people: Any) -> None:
    parts.files[layout.SEALED] = seal.seal(b"{}", "f" * 16, SECRETS.seal, of(people).escrow)
    parts.files["MANIFEST.jsonl"] = _manifest(parts.files)
    assert parts.refusal(honest_manifest=False).code == "E_STUDY"


@pytest.mark.parametrize("path", [layout.SIGNATURE, layout.SEALED, layout.CHALLENGE])
def test_what_a_sealed_packet_needs(parts: Any, path: str) -> None:
    del parts.files[path]
    parts.files["MANIFEST.jsonl"] = _manifest(parts.files)
    assert parts.refusal(honest_manifest=False).code == "E_MISSING"


def test_a_sealed_packet_with_open_results(parts: Any, built: Built) -> None:
    parts.files[layout.RESULTS] = content(built.path)[layout.RESULTS]
    parts.files["MANIFEST.jsonl"] = _manifest(parts.files)
    assert parts.refusal(honest_manifest=False).code == "E_EXTRA"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"blinding_level": "L0"}, "E_SCHEMA"),
        ({"critical": ["open-results", "sealed-results"]}, "E_SCHEMA"),
        ({"critical": ["sealed-results", "quantum-seal"]}, "E_SCHEMA_NEWER"),
    ],
)
def test_the_level_is_the_one_of_the_form(parts: Any, change: dict[str, Any], code: str) -> None:
    parts.edit(layout.PACKET, lambda d: d.update(change))
    parts.files["MANIFEST.jsonl"] = _manifest(parts.files)
    assert parts.refusal(honest_manifest=False).code == code


def test_arm_files_of_different_sizes_are_a_leak(parts: Any) -> None:
    arm = next(path for path in parts.files if path.startswith(layout.ARMS))
    parts.edit(arm, lambda d: d.update(filler=d["filler"] + "."))
    parts.files["MANIFEST.jsonl"] = _manifest(parts.files)
    assert parts.refusal(honest_manifest=False).code == "E_LEAK"


def test_a_filler_that_speaks(parts: Any) -> None:
    arm = next(path for path in parts.files if path.startswith(layout.ARMS))
    parts.edit(arm, lambda d: d.update(filler="this one"))
    parts.files["MANIFEST.jsonl"] = _manifest(parts.files)
    assert parts.refusal(honest_manifest=False).code == "E_SCHEMA"


def test_an_open_packet_still_builds_without_any_key(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify_file: Callable[..., Verification]
) -> None:
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(tmp_path / "no-keys"))
    built = build(study, out=tmp_path / "p.rep.zip")
    assert verify_file(built.path).form == layout.OPEN
    assert not (tmp_path / "no-keys").exists()


def test_a_branch_named_after_the_idea_is_a_leak(
    study: Path, people: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "counterproof_review.packet.leaks.checkout_words", lambda _: frozenset({"sha256-order"})
    )
    with pytest.raises(PacketError, match="E_LEAK"):
        build(study, out=tmp_path / "p.rep.zip", sealed=of(people))


def _manifest(files: dict[str, bytes]) -> bytes:
    from counterproof_review.packet import manifest

    kept = {p: d for p, d in files.items() if p not in ("MANIFEST.jsonl", layout.SIGNATURE)}
    return manifest.build(kept)
