"""The journal: chained, flushed, tolerant of a torn tail and of nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterproof.errors import EvidenceError
from counterproof.record import canonical
from counterproof.record.journal import START, Journal, read


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "journal.jsonl")
    for number in range(4):
        journal.append("event", number=number, text="ä\n")
    return journal


def test_lines_are_chained_by_hash(journal: Journal) -> None:
    lines = journal.path.read_bytes().splitlines()
    previous = START
    for number, line in enumerate(lines):
        event = json.loads(line)
        assert (event["seq"], event["prev"], event["number"]) == (number, previous, number)
        digest = event.pop("hash")
        assert digest == canonical.sha256_json(event)
        previous = digest
    assert read(journal.path).head == previous


def test_a_missing_journal_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "none").events == ()


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_tail_is_set_aside_and_said_so(journal: Journal, cut: int) -> None:
    whole = journal.path.read_bytes()
    torn = whole.splitlines(keepends=True)[-1][:-cut]
    journal.path.write_bytes(whole[: -len(torn) - cut] + torn)
    assert [event["number"] for event in read(journal.path).events] == [0, 1, 2]
    assert read(journal.path).torn == torn
    journal.append("event", number=9)
    events = journal.events()
    assert [event["kind"] for event in events] == ["event"] * 3 + ["torn_tail", "event"]
    kept = journal.path.with_name(events[3]["file"])
    assert kept.read_bytes() == torn
    assert events[3]["sha256"] == canonical.sha256_bytes(torn)
    assert read(journal.path).torn == b""


def test_a_second_torn_tail_gets_a_file_of_its_own(journal: Journal) -> None:
    for _ in range(2):
        with journal.path.open("ab") as stream:
            stream.write(b'{"half')
        journal.append("event", number=0)
    files = [event["file"] for event in journal.events() if event["kind"] == "torn_tail"]
    assert files == ["journal.torn-1", "journal.torn-2"]


def test_every_change_in_the_middle_is_found_and_named(journal: Journal) -> None:
    lines = journal.path.read_bytes().splitlines(keepends=True)
    edits = {
        "line 2 was changed": [lines[0], lines[1].replace(b'"number":1', b'"number":7'), *lines[2:]],
        "line 2 does not follow": [lines[0], *lines[2:]],
        "line 3 does not follow": [lines[0], lines[1], lines[1], *lines[2:]],
        "line 1 does not follow": lines[1:],
        "line 2 is not valid JSON": [lines[0], lines[1][:20] + b"\n", *lines[2:]],
        "line 2 is not in canonical form": [lines[0], lines[1].replace(b",", b", ", 1), *lines[2:]],
        "line 4 is not a journal event": [*lines[:3], b"{}\n"],
    }
    for message, content in edits.items():
        journal.path.write_bytes(b"".join(content))
        with pytest.raises(EvidenceError, match=message):
            read(journal.path)
        with pytest.raises(EvidenceError, match=message):
            journal.append("event")


def test_duplicate_keys_and_non_finite_numbers_are_refused() -> None:
    for text in ('{"a":1,"a":1}', '{"a":NaN}', '{"a":Infinity}', '{"a":', "\ufeff{}"):
        with pytest.raises(EvidenceError):
            canonical.loads(text, name="x")
    with pytest.raises(ValueError, match="Out of range"):
        canonical.dumps({"a": float("nan")})


def test_reserved_fields_cannot_be_overwritten(journal: Journal) -> None:
    with pytest.raises(ValueError, match="reserved"):
        journal.append("event", hash="x")


def test_two_writers_never_break_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    code = (
        "import pathlib, sys\n"
        "from counterproof.record.journal import Journal\n"
        "for number in range(20):\n"
        "    Journal(pathlib.Path(sys.argv[1])).append('event', writer=sys.argv[2], number=number)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    events = read(path).events
    assert len(events) == 40
    for name in "ab":
        assert [e["number"] for e in events if e["writer"] == name] == list(range(20))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(value=st.dictionaries(st.text(max_size=4), JSON, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_canonical_json_is_one_form_of_the_content(value: dict[str, object]) -> None:
    try:
        data = canonical.dumps(value)
    except UnicodeEncodeError:
        return  # a lone surrogate has no UTF-8 form and cannot be recorded
    assert canonical.loads(data) == value
    shuffled = dict(reversed(value.items()))
    assert canonical.dumps(shuffled) == data
