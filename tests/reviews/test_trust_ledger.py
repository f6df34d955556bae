"""Ledgers: edits, reordering, truncation and forks show; a torn line, another's key and a revoked one are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from counterproof_review.trust import keys, ledger, registry
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair
from counterproof_review.trust.ledger import Ledger
from counterproof_review.trust.registry import Registry

DIGEST = "ab" * 32


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, KeyPair]:
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(tmp_path / "keys"))
    return {name: keys.new(name) for name in ("author", "reviewer", "steward")}


@pytest.fixture
def known(pairs: dict[str, KeyPair]) -> Registry:
    people = [(pairs[role].public(), role) for role in ("author", "reviewer")]
    return registry.read(registry.create(pairs["steward"], people), pairs["steward"].key_id)


@pytest.fixture
def written(tmp_path: Path, pairs: dict[str, KeyPair], known: Registry) -> Ledger:
    book = Ledger(tmp_path / "author" / "ledger.jsonl")
    for number in range(4):
        book.append(known, pairs["author"], "author", "note", {"n": number}, {"thing": DIGEST})
    return book


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(TrustError) as caught:
        action()
    return caught.value.code


def test_entries_follow_from_each_other(written: Ledger, known: Registry) -> None:
    entries = written.read(known)
    assert [entry.body["n"] for entry in entries] == [0, 1, 2, 3]
    assert [entry.prev for entry in entries] == [ledger.FIRST, *(e.sha256 for e in entries[:-1])]


def test_ledger_edit_and_reorder_are_refused(written: Ledger, known: Registry) -> None:
    lines = written.path.read_bytes().splitlines(keepends=True)
    for changed in (
        [lines[1], lines[0], *lines[2:]],
        [lines[0], *lines[2:]],
        [lines[0], lines[0], *lines[1:]],
        lines[1:],
    ):
        assert code_of(lambda c=changed: ledger.verify(b"".join(c), known)) == "E_CHAIN"
    assert code_of(lambda: ledger.verify(b"".join(lines)[:-1], known)) == "E_CHAIN"


def test_ledger_truncate_passes_alone_and_fails_against_the_witness(
    written: Ledger, known: Registry, pairs: dict[str, KeyPair], tmp_path: Path
) -> None:
    entries = written.read(known)
    other = Ledger(tmp_path / "reviewer" / "ledger.jsonl")
    author = pairs["author"].key_id
    other.witness(known, pairs["reviewer"], "reviewer", author, ledger.head(entries))
    seen = other.read(known)
    ledger.check_witnessed(entries, author, [seen])
    lines = written.path.read_bytes().splitlines(keepends=True)
    shorter = ledger.verify(b"".join(lines[:3]), known)  # as a chain it is whole
    assert code_of(lambda: ledger.check_witnessed(shorter, author, [seen])) == "E_TRUNCATED"
    written.path.write_bytes(b"".join(lines[:3]))
    written.append(known, pairs["author"], "author", "note", {"n": 99}, {"thing": DIGEST})
    forked = written.read(known)
    with pytest.raises(TrustError) as caught:
        ledger.check_witnessed(forked, author, [seen])
    assert caught.value.code == "E_FORK"
    assert {line.split()[-1] for line in caught.value.details} == {forked[3].sha256, entries[3].sha256}
    assert code_of(lambda: ledger.check_same(entries, forked)) == "E_FORK"
    ledger.check_same(entries, shorter)


def test_only_the_registered_role_may_append(
    written: Ledger, known: Registry, pairs: dict[str, KeyPair]
) -> None:
    before = written.path.read_bytes()
    stranger = keys.new("stranger")
    for key, role, code in (
        (pairs["reviewer"], "author", "E_ROLE"),
        (stranger, "author", "E_KEY_UNKNOWN"),
    ):
        assert code_of(lambda k=key, r=role: written.append(known, k, r, "note", {}, {"a": DIGEST})) == code
    assert written.path.read_bytes() == before


def test_what_a_revoked_key_signed_before_stays_valid(
    written: Ledger, known: Registry, pairs: dict[str, KeyPair]
) -> None:
    steward = pairs["steward"]
    later = registry.read(registry.revoke(known, steward, pairs["author"].key_id, 4), steward.key_id, known)
    assert len(written.read(later)) == 4
    assert (
        code_of(lambda: written.append(later, pairs["author"], "author", "note", {}, {"a": DIGEST}))
        == "E_KEY_REVOKED"
    )
    earlier = registry.read(registry.revoke(known, steward, pairs["author"].key_id, 2), steward.key_id, known)
    assert code_of(lambda: written.read(earlier)) == "E_KEY_REVOKED"


def test_every_changed_byte_of_a_ledger_is_seen(written: Ledger, known: Registry) -> None:
    data = written.path.read_bytes()
    rng = random.Random(2)
    for _ in range(2000):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with pytest.raises(TrustError):
            ledger.verify(bytes(changed), known)
