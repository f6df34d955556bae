"""The sample that ships: it verifies, replays and judges like any other, and nobody trusts its keys.

When a change of format breaks this, build it anew: `python reviews/build_sample.py FOLDER`.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from counterproof.cli import build_parser, main
from counterproof_review.packet import archive, layout
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.verify import Verification, verify
from counterproof_review.protocol import bundle, lookup, outcome
from counterproof_review.protocol import folder as folders
from counterproof_review.schema import catalogue
from counterproof_review.trust import private, sample
from counterproof_review.trust.errors import TrustError

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "reviews" / "sample"
PROTOCOL = (ROOT / "reviews" / "PROTOCOL.md").read_text(encoding="utf-8")
REBUILD = "the sample no longer fits the code; build it anew: python reviews/build_sample.py FOLDER"
DEADLINE = 200


def block(name: str) -> list[str]:
    """The lines of a fenced block of PROTOCOL.md."""
    found = re.search(rf"^```{name}\n(.*?)^```$", PROTOCOL, re.DOTALL | re.MULTILINE)
    assert found, f"PROTOCOL.md has no block {name}"
    return found[1].splitlines()


@pytest.fixture
def review(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> folders.Review:
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(tmp_path / "keys"))
    private.trust(sample.key("steward").key_id)
    place = tmp_path / "review"
    place.mkdir()
    bundle.merge(place, SAMPLE / "review.zip")
    return folders.read(place)


# -- the packet and the review ------------------------------------------------------------------------------


def test_the_packet_is_whole_and_small() -> None:
    report = Verification()
    try:
        with Archive.open(SAMPLE / "sample.rep.zip") as archive:
            verify(archive, report)
    except Exception as error:  # whatever it is, the answer is the same
        pytest.fail(f"{REBUILD}\n{error}")
    assert report.packet["packet_id"] == sample.packet_keys().packet_id
    assert report.documents[layout.RESULTS]["evidence_valid"] is True
    assert report.packet["blocks"] >= layout.MIN_BLOCKS
    assert all(path.stat().st_size <= 300_000 for path in SAMPLE.glob("*.zip"))


def test_one_block_of_it_replays_on_the_model_that_ships(tmp_path: Path) -> None:
    """Real runs, from the file alone. One block decides nothing, so the answer is INCONCLUSIVE."""
    options = ["--dir", str(tmp_path / "r"), "--blocks", "1", "--models", str(ROOT / "data" / "models")]
    done = subprocess.run(
        [sys.executable, "-m", "counterproof", "packet", "replay", str(SAMPLE / "sample.rep.zip"), *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=tmp_path,
    )
    assert done.returncode == 0, f"{REBUILD}\n{done.stdout}\n{done.stderr}"
    record = json.loads((tmp_path / "r" / "replay.json").read_text())
    assert (record["verdict"], record["blocks"]) == ("INCONCLUSIVE", 1)
    assert record["outputs"]["requests"] == 4 * 11
    assert all(len(values) == 1 and values[0] > 0 for values in record["per_block"].values())
    assert record["network"]["probe"] != "open"
    errors = list(_schema("replay").iter_errors(record))
    assert not errors, errors[:2]


def test_its_review_can_be_judged_again_by_anybody(review: folders.Review) -> None:
    signed = (review.folder.root / folders.VERDICT).read_bytes()
    found = outcome.compute(review)
    assert outcome.encode(found) == signed, REBUILD
    assert (found["verdict"], found["grows"], found["level"]) == ("REPLICATED", True, "L3")
    assert found["faults"] == []
    assert {event.role for event in review.state.verdicts} == {"reviewer", "steward"}
    assert found["theta_replay"] > 2, "the cache of the tiny model gains a factor, not a few percent"


def test_open_packet_and_sealed_packet_are_of_one_study(review: folders.Review) -> None:
    report = Verification()
    with Archive.open(SAMPLE / "sample.rep.zip") as archive:
        verify(archive, report)
    assert report.packet["claim_id"] == review.state.prereg.body["plan_sha256"]
    opened = outcome.open_all(review).content
    assert opened is not None
    ratios = report.documents[layout.RESULTS]["log_ratios"]
    assert opened["log_ratios"] == ratios


# -- its keys -----------------------------------------------------------------------------------------------


def test_nobody_trusts_the_sample_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPROOF_KEYS", str(tmp_path / "keys"))
    assert private.trusted() == frozenset()
    (tmp_path / "r").mkdir()
    with pytest.raises(TrustError, match="no steward is trusted"):
        bundle.merge(tmp_path / "r", SAMPLE / "review.zip")


def test_a_review_by_sample_keys_lets_no_scope_grow(
    review: folders.Review, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where somebody trusts them and attaches it to its own study."""
    study = tmp_path / "study"
    study.mkdir()
    monkeypatch.setattr(lookup, "_check_claim", lambda *_: None)
    lookup.attach(study, SAMPLE / "review.zip")
    found = lookup.standing_of(study)
    assert found.verdict == "NO_REVIEW"
    assert "everybody has" in found.reason
    monkeypatch.setattr(sample, "key_ids", frozenset)
    assert lookup.standing_of(study).verdict == "REPLICATED"


def test_sample_keys_are_known_by_name_and_never_change() -> None:
    assert [sample.key(role).name for role in sample.ROLES] == [f"sample-{role}" for role in sample.ROLES]
    assert len(sample.key_ids()) == 3
    assert sample.key("steward").key_id in PROTOCOL


# -- PROTOCOL.md --------------------------------------------------------------------------------------------


def accepted(words: list[str]) -> bool:
    """Whether the command line takes these words (or would print its help)."""
    try:
        build_parser().parse_args(words)
    except SystemExit as stopped:
        return stopped.code == 0
    return True


def test_every_command_of_the_protocol_is_one() -> None:
    whole = [line for name in ("sample", "review", "more") for line in block(name)]
    commands = [shlex.split(line)[1:] for line in whole if line.startswith("counterproof ")]
    assert len(commands) > 20
    assert [words for words in commands if not accepted(words)] == []
    # In running text a command is often only named, without all of its arguments.
    named = [shlex.split(text)[1:] for text in re.findall(r"`(counterproof [^`]*?)`", PROTOCOL)]
    assert named
    assert [w for w in named if not accepted(w) and not accepted([*w[:2], "--help"])] == []
    assert not accepted(["review", "nothing", "--help"])


def test_the_walk_through_the_sample_works_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every line, in order; of the replay one block, for the rest of it takes minutes."""
    monkeypatch.chdir(ROOT)
    lines = [*block("sample"), *block("more")]
    exported = exports([line for line in lines if line.startswith("export ")], tmp_path)
    place = exported["TRY"]
    assert Path(place).parent == tmp_path
    assert exported["COUNTERPROOF_KEYS"] == f"{place}/keys"  # nothing is written outside $TRY
    monkeypatch.setenv("COUNTERPROOF_KEYS", exported["COUNTERPROOF_KEYS"])
    ran = []
    for line in lines:
        words = [one for word in shlex.split(line.replace("$TRY", place)) for one in expanded(word)]
        if words[0] != "counterproof":
            assert words[0] == "export"
            continue
        if words[1:3] == ["packet", "replay"]:
            continue  # run by a test of its own
        assert main(words[1:]) == 0, line
        ran.append(words[2])
    assert ran[:3] == ["verify", "show", "new"]
    assert {"import", "status", "export-crate", "schema"} <= set(ran)
    shown = capsys.readouterr()
    assert "is whole" in shown.out
    assert "verdict" in shown.out
    assert "fault" not in shown.err


def exports(lines: list[str], place: Path) -> dict[str, str]:
    """What a shell makes of these lines; a variable that is used before it is set is an error."""
    done = subprocess.run(
        ["bash", "-eu", "-c", "\n".join([*lines, "env -0"])],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return dict(one.split("=", 1) for one in done.stdout.split("\0") if one)


def expanded(word: str) -> list[str]:
    """What a shell makes of a word with a star in it."""
    return sorted(glob.glob(word)) if "*" in word else [word]


def by_hand(folder: Path, steward: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "by_hand.py"
    script.write_text("\n".join(block("python")), encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(script), str(folder), steward], capture_output=True, text=True, timeout=60
    )


def test_signatures_are_checked_by_hand_as_written(review: folders.Review, tmp_path: Path) -> None:
    steward = sample.key("steward").key_id
    done = by_hand(review.folder.root, steward, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "all signatures hold; 2 signed verdicts" in done.stdout
    assert done.stdout.count("reviewer") == len(review.ledgers["reviewer"])
    assert by_hand(review.folder.root, "0" * 64, tmp_path).returncode != 0


def test_another_verdict_than_the_signed_one_is_refused_where_it_is_read_and_taken_over(
    review: folders.Review, tmp_path: Path
) -> None:
    root = review.folder.root
    file = root / folders.VERDICT
    whole = file.read_bytes()
    try:
        file.write_bytes(whole.replace(b"REPLICATED", b"NOT_REPLICATED"))
        with pytest.raises(TrustError, match="not the one that was signed"):
            folders.read(root)
        file.unlink()
        (tmp_path / "elsewhere").write_bytes(whole)
        file.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(TrustError, match="is a link"):
            folders.read(root)
    finally:
        file.unlink(missing_ok=True)
        file.write_bytes(whole)
    with Archive.open(SAMPLE / "review.zip") as opened:
        files: dict[str, bytes | Path] = {n: opened.read(n, layout.MAX_MEMBER_BYTES) for n in opened.members}
    files[folders.VERDICT] = whole.replace(b"REPLICATED", b"NOT_REPLICATED")
    archive.write(tmp_path / "other.zip", files)
    (tmp_path / "fresh").mkdir()
    with pytest.raises(TrustError, match="not the one that was signed"):
        bundle.merge(tmp_path / "fresh", tmp_path / "other.zip")
    assert not list((tmp_path / "fresh").iterdir())
    folders.check_named(review.ledgers, folders.VERDICT, whole)
    with pytest.raises(TrustError, match="not the one that was signed"):
        folders.check_named(review.ledgers, folders.VERDICT, whole + b" ")


@pytest.mark.parametrize(
    "file", ["ledgers/reviewer.jsonl", "ledgers/author.jsonl", "verdict.json", "registry.dsse.json"]
)
def test_the_check_by_hand_sees_a_change(review: folders.Review, tmp_path: Path, file: str) -> None:
    path = review.folder.root / file
    data = bytearray(path.read_bytes())
    place = data.index(b'"payload":"') + 60 if b'"payload":"' in data else len(data) // 2
    data[place] = ord("A") if data[place] != ord("A") else ord("B")
    path.write_bytes(bytes(data))
    assert by_hand(review.folder.root, sample.key("steward").key_id, tmp_path).returncode != 0


def test_the_check_by_hand_sees_a_missing_entry(review: folders.Review, tmp_path: Path) -> None:
    path = review.folder.ledger("reviewer")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    done = by_hand(review.folder.root, sample.key("steward").key_id, tmp_path)
    assert done.returncode != 0
    assert "missing or out of place" in done.stderr


def test_every_error_and_verdict_that_the_protocol_names_exists() -> None:
    from counterproof_review.packet import errors
    from counterproof_review.verdict import rule

    known = {*errors.MALFORMED, *errors.UNTRUE, *errors.SETUP, "E_REGISTRY", "E_FORK", "E_PROTOCOL"}
    assert set(re.findall(r"`(E_[A-Z_]+)`", PROTOCOL)) <= known
    table = PROTOCOL.split("## What a verdict means")[1].split("##")[0]
    assert re.findall(r"^\| ([A-Z_]+) \|", table, re.MULTILINE) == list(rule.VERDICTS)


def test_the_script_takes_the_steps_that_it_says() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "reviews" / "build_sample.py"), "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "{prepare,study,issue,replay,finish,publish}" in done.stdout


def _schema(name: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(catalogue.text(name)))
