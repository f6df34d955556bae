"""The page Replication: nothing sealed before the reveal, the signed verdict after it, and ledgers that do not hold."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from counterproof_dashboard import replication
from counterproof_review.trust import keys, ledger, registry
from counterproof_review.trust.keys import KeyPair
from counterproof_review.trust.ledger import Ledger

DIGEST = {"thing": "ab" * 32}
SECRET = "0.7310585"
HOSTILE = "</script><script>alert(1)</script> 评审 \u202e"


class Table:
    """Three parties that sign entries in one review's folder."""

    def __init__(self, root: Path, pairs: Mapping[str, KeyPair]) -> None:
        self.root, self.pairs = root, pairs
        root.mkdir(parents=True)
        data = registry.create(pairs["steward"], [(pairs[r].public(), r) for r in ("author", "reviewer")])
        (root / replication.REGISTRY).write_bytes(data)
        self.known = registry.read(data, pairs["steward"].key_id)

    def book(self, role: str) -> Ledger:
        return Ledger(self.root / "ledgers" / f"{role}.jsonl")

    def enter(self, role: str, kind: str, **body: Any) -> None:
        """Witness what the others wrote, then sign the entry."""
        for other in replication.PARTIES:
            head = ledger.head(self.book(other).read(self.known))
            if other != role and head.seq >= 0:
                self.book(role).witness(self.known, self.pairs[role], role, other, head)
        self.book(role).append(self.known, self.pairs[role], role, kind, body, DIGEST)

    def until_freeze(self) -> None:
        self.enter("author", "prereg", runs=0, plan_sha256="1" * 64)
        self.enter("steward", "note")
        self.enter("author", "issue", packet_id="feed", deadline_days=7.0, commitment={"plain": "2" * 64})
        self.enter("reviewer", "accept", root="3" * 64, nonce="4" * 64)
        self.enter("reviewer", "start", attempt=1, blocks=6)
        self.enter("reviewer", "end", attempt=1, status="completed", failed_runs=0, runs=[])
        pair = {
            "numerator": "0a0a0a0a",
            "denominator": "0b0b0b0b",
            "n": 6,
            "ratio": 0.5,
            "ratio_ci": [0.48, 0.52],
        }
        self.enter("reviewer", "freeze", level="L3", pairs=[pair])

    def reveal(self, verdict: Mapping[str, Any]) -> None:
        self.enter("author", "reveal", keys={"feed": {"key": "5" * 64, "salt": "6" * 64}})
        data = json.dumps(verdict).encode()
        (self.root / replication.VERDICT).write_bytes(data)
        self.enter("reviewer", "verdict", sha256=hashlib.sha256(data).hexdigest())


def verdict(word: str = "REPLICATED", **fields: Any) -> dict[str, Any]:
    return {
        "verdict": word,
        "reason": f"inside the band {HOSTILE}",
        "theta_author": 2.0,
        "author_bounds": [1.9, 2.1],
        "theta_replay": 1.96,
        "bounds": [1.8, 2.13],
        "difference": [0.98, 0.96, 1.004],
        "band": 0.05,
        "sesoi": 0.1,
        "stall_sentence": "the candidate may stall in up to 39 % of blocks (95 %)",
        "outputs_sentence": "outputs of candidate and baseline: the same in 6 of 6 blocks",
        "level": "L3",
        "faults": [],
        **fields,
    }


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KeyPair]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNTERPROOF_KEYS", str(tmp_path_factory.mktemp("keys")))
        return {name: keys.new(name) for name in replication.PARTIES}


@pytest.fixture
def table(tmp_path: Path, pairs: dict[str, KeyPair]) -> Table:
    return Table(tmp_path / "store" / "reviews" / "one", pairs)


def said(app: AppTest) -> str:
    kinds = ("title", "subheader", "markdown", "caption", "success", "error", "warning", "info", "code")
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind)).replace("\\", "")


def everything(app: AppTest) -> str:
    """All that the server sends: every element's proto, tables and charts with their data."""
    parts = [str(getattr(node, "proto", "")) for node in app.main]
    parts += [frame.value.to_csv() for frame in app.dataframe]
    return "\n".join([*parts, said(app)])


Specs = Callable[[AppTest], dict[str, dict[str, Any]]]


def drawn(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for rows in spec["datasets"].values() for row in rows if "label" in row]


def test_without_a_review_nothing_is_replicated(open_page: Callable[..., AppTest], tmp_path: Path) -> None:
    app = open_page(tmp_path / "store", "replication")
    assert "it is not replicated" in app.info[0].value
    assert not app.dataframe
    gone = open_page(tmp_path / "store", "replication", review="deleted")
    assert "There is no review" in gone.error[0].value


def test_before_the_reveal_the_server_holds_nothing_sealed(
    open_page: Callable[..., AppTest], table: Table, monkeypatch: pytest.MonkeyPatch, specs_of: Specs
) -> None:
    table.until_freeze()
    # What must not be read although it lies there: a packet, an attempt, and a verdict before its time.
    for name in ("packets/feed.rep.zip", "attempts/01/estimates.json", "keys/feed.secret.json"):
        (table.root / name).parent.mkdir(parents=True, exist_ok=True)
        (table.root / name).write_text(SECRET)
    (table.root / replication.VERDICT).write_text(
        json.dumps(verdict(theta_author=float(SECRET), reason=SECRET))
    )
    opened: list[str] = []
    for name in ("read_bytes", "open"):
        real = getattr(Path, name)

        def recording(path: Path, *arguments: Any, real: Any = real, **named: Any) -> Any:
            if table.root in path.parents:
                opened.append(path.name)
            return real(path, *arguments, **named)

        monkeypatch.setattr(Path, name, recording)
    app = open_page(table.root.parents[1], "replication")
    assert set(opened) <= {"registry.dsse.json", "author.jsonl", "reviewer.jsonl", "steward.jsonl"}
    assert {"registry.dsse.json", "reviewer.jsonl"} <= set(opened)
    assert "under seal" in app.info[0].value
    assert not specs_of(app)
    held = replication.read(table.root)
    assert held.outcome is None
    assert held.pairs[0].ratio == 0.5
    for text in (everything(app), repr(held)):
        assert SECRET not in text
        assert "0.731" not in text
        assert "theta" not in text
        assert "baseline" not in text
        assert "candidate" not in text
    steps = app.dataframe[1].value
    assert list(steps["Step"]) == ["PREREG", "NOTE", "ISSUE", "ACCEPT", "START", "END", "FREEZE"]
    assert "Clock" not in steps.columns


def test_after_the_reveal_both_intervals_stand_beside_each_other_with_the_band(
    open_page: Callable[..., AppTest], table: Table, specs_of: Specs
) -> None:
    table.until_freeze()
    table.reveal(verdict())
    app = open_page(table.root.parents[1], "replication")
    assert app.success[0].value.replace("\\", "").startswith("**REPLICATED**")
    both, agreement = specs_of(app).values()
    points = {row["label"]: (row["low"], row["ratio"], row["high"]) for row in drawn(both)}
    assert points == {"author": (1.9, 2.0, 2.1), "replication": (1.8, 1.96, 2.13)}
    assert drawn(agreement)[0]["ratio"] == 0.98
    edges = next(row for rows in agreement["datasets"].values() for row in rows if "from" in row)
    assert (edges["from"], edges["to"]) == (1 / 1.05, 1.05)
    assert "39 % of blocks" in said(app) and "same in 6 of 6 blocks" in said(app)
    assert "<script>" not in "".join(str(box.value) for box in app.success)
    assert "Clock" in app.dataframe[1].value.columns
    # The keys that opened the seal are public now, and still no business of a page.
    assert "5" * 64 not in everything(app)


SCOPE = {"prompt_tokens": [17, 48], "output_tokens": [12, 12], "concurrency": 8}
SEARCHED = {"searched": True, "inside": 2, "outside": 1, "says": "3 confirmed in 100 cells"}


@pytest.mark.parametrize(
    ("entered", "words"),
    [
        (None, "none were searched for"),
        ({"searched": False, "reason": "no time"}, "none were searched for (no time)"),
        (
            {**SEARCHED, "left_of_scope": [SCOPE, None]},
            "3 confirmed in 100 cells; inside the scope 2, outside 1",
        ),
        ({**SEARCHED, "left_of_scope": [SCOPE, None]}, "prompt_tokens 17 to 48, output_tokens 12 to 12"),
        ({**SEARCHED, "left_of_scope": [SCOPE, None]}, "concurrency 1 to 8; or nothing"),
        ({**SEARCHED, "left_of_scope": 7}, "inside the scope 2, outside 1."),
    ],
)
def test_the_page_says_what_the_search_for_counterexamples_found(
    open_page: Callable[..., AppTest], table: Table, entered: Any, words: str
) -> None:
    table.until_freeze()
    table.reveal(verdict("NOT_REPLICATED", counterexamples=entered))
    assert words in said(open_page(table.root.parents[1], "replication"))


@pytest.mark.parametrize(
    "word", ["NOT_REPLICATED", "INVALID", "REPLICATED_SMALLER", "INCONCLUSIVE", "UNADJUDICABLE"]
)
def test_no_other_verdict_is_green(
    open_page: Callable[..., AppTest], table: Table, word: str, specs_of: Specs
) -> None:
    table.until_freeze()
    table.reveal(verdict(word, theta_author=None, author_bounds=None, difference=None, faults=["a fault"]))
    app = open_page(table.root.parents[1], "replication")
    assert word in said(app)
    assert all("Every signature" in box.value for box in app.success)
    assert any("a fault" in box.value for box in app.error)
    assert {row["label"] for row in drawn(next(iter(specs_of(app).values())))} == {"replication"}


def test_a_verdict_that_was_not_signed_is_not_shown(
    open_page: Callable[..., AppTest], table: Table, specs_of: Specs
) -> None:
    table.until_freeze()
    table.reveal(verdict("NOT_REPLICATED"))
    (table.root / replication.VERDICT).write_text(json.dumps(verdict("REPLICATED")))
    app = open_page(table.root.parents[1], "replication")
    assert "not the one that was signed" in app.warning[0].value
    assert not specs_of(app)


@pytest.mark.parametrize("how", ["edit", "cut", "fork", "registry", "nonsense"])
def test_a_ledger_that_does_not_hold_is_refused(
    open_page: Callable[..., AppTest], table: Table, pairs: dict[str, KeyPair], how: str, specs_of: Specs
) -> None:
    table.until_freeze()
    table.reveal(verdict())
    path = table.book("author").path
    lines = path.read_bytes().splitlines(keepends=True)
    if how == "edit":
        at = lines[1].index(b'"payload":"') + 30
        other = b"B" if lines[1][at : at + 1] == b"C" else b"C"
        path.write_bytes(b"".join([*lines[:1], lines[1][:at] + other + lines[1][at + 1 :], *lines[2:]]))
    elif how == "cut":
        path.write_bytes(b"".join(lines[:-1]))
    elif how == "fork":
        path.unlink()
        table.book("author").append(table.known, pairs["author"], "author", "prereg", {"runs": 1}, DIGEST)
    elif how == "registry":
        (table.root / replication.REGISTRY).write_bytes(b'{"signatures": [{"keyid": "00"}]}')
    else:
        path.write_bytes(b"\xff\x00 no ledger\n")
    found = replication.read(table.root)
    assert found.problem
    assert found.steps == ()
    app = open_page(table.root.parents[1], "replication")
    assert "is refused" in app.error[0].value
    assert not specs_of(app)
    assert not app.dataframe


@pytest.mark.parametrize("value", [None, "2.0", True, [], math.pi])
def test_fields_of_another_verdict_version_are_not_recorded(table: Table, value: Any) -> None:
    table.until_freeze()
    table.reveal(
        {"verdict": "INVALID", "theta_author": value, "bounds": value, "difference": value, "faults": value}
    )
    outcome = replication.read(table.root).outcome
    assert outcome is not None
    assert outcome.author == (math.pi if value == math.pi else None)
    assert outcome.replay_interval == (None, None)
    assert outcome.difference == (None, None, None)
    assert outcome.faults == ()
