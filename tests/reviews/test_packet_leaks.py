"""The leak lint, on packets and on text."""

from __future__ import annotations

from typing import Any

import pytest

from counterproof.errors import EXIT_INVALID
from counterproof_review.packet import documents, layout, leaks
from counterproof_review.packet.leaks import Lint

# -- planted in a packet ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "planted"),
    [
        (layout.PREREG, {"note": "the candidate should win"}),
        (layout.NOISE, {"Baseline": 1}),
        (layout.SCOPE, {"where": "/home/alice/models"}),
        (layout.LINEAGE, {"created_utc": "x"}),
        (layout.LINEAGE, {"when": "2026-01-02T03:04:05Z"}),
        (layout.ENVIRONMENT, {"id": {"mail": "alice@example.org"}}),
        (layout.CODE_LOCK, {"token": "hf_abcdefghijklmnopqrstuvwx"}),
        (layout.SCHEDULE, {"server": "10.1.2.3:5000"}),
    ],
)
def test_planted_leak(members: Any, path: str, planted: dict[str, Any]) -> None:
    members.edit(path, lambda document: document.update(planted))
    error = members.refusal()
    assert (error.code, error.exit_code) == ("E_LEAK", EXIT_INVALID)
    assert path in str(error)


# -- on text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "the baseline",
        "CANDIDATE",
        "run 00-again-1",
        "slowed/",
        "control arm",
        "/home/alice/x",
        "see /usr/lib",
        "~/models",
        "file:///x",
        "C:\\models",
        "2026-11-30T10:00:00",
        "on 2026-11-30",
        "at 10:11:12",
        "alice@example.org",
        "hf_abcdefghijklmnopqrstuv",
        "-----BEGIN PRIVATE KEY-----",
        "10.0.0.1:8080",
        "by mallory",
        "host build-box-7",
    ],
)
def test_lint_finds(text: str) -> None:
    lint = Lint(words=frozenset({"mallory", "build-box-7"}))
    assert lint.document("x.json", {"a": [{"b": text}]})
    assert lint.document("x.json", {text: 1})


@pytest.mark.parametrize(
    "text",
    [
        "kv_cache.enabled",
        "application/json",
        "sha256:" + "ab" * 32,
        "AMD EPYC, 2 logical cores; x86_64",
        "2.13.0+cpu",
        "Linux 6.18.44",
        "every block runs every arm once",
        "against",
        "replay/arms/0a1b2c3d.json",
        "glibc-2.36",
    ],
)
def test_lint_lets_pass(text: str) -> None:
    assert Lint(words=frozenset({"mallory"})).document("x.json", {"a": text, text: [1, 2, None, True]}) == []


def test_lint_finds_a_key_that_tells_when() -> None:
    for key in ("created_utc", "started", "timestamp", "run_date"):
        assert Lint().document("x.json", {key: 5})
    assert not Lint().document("x.json", {"request_timeout_s": 5, "updated_rule": 1, "candidates": 1})


def test_a_user_called_like_a_package_is_no_leak_there() -> None:
    lint = Lint(words=frozenset({"torch"}), known=leaks.vocabulary(["torch", "numpy"]))
    assert not lint.document("x.json", {"packages": {"torch": "2.13"}})
    assert Lint(words=frozenset({"torch"})).document("x.json", {"packages": {"torch": "2.13"}})


def test_this_machines_own_names_are_looked_for() -> None:
    import socket

    host = socket.gethostname()
    if len(host) >= 3:
        assert host in leaks.machine_words()


@pytest.mark.parametrize("name", ["claim", "packet", "prereg", "scope", "blocks"])
def test_a_study_called_like_a_word_of_the_format_is_no_leak(name: str) -> None:
    known = leaks.vocabulary(documents.own_texts())
    document = {
        "claim_id": "0",
        "packet_id": "1",
        "blocks": 6,
        "schema": "replication-prereg/1",
        "scope": "x",
    }
    assert leaks.Lint(frozenset({name}), known).document("PACKET.json", document) == []
    (leak,) = leaks.Lint(frozenset({"winner"}), known).document("PACKET.json", {"unit": "winner"})
    assert "names the study" in leak.what
