"""The ledger of deployments refuses edits, removals and cut ends; boxes hold what was shown; drills prove what they say."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterproof.decide.deploy import box, restored
from counterproof.errors import EvidenceError, InputError
from counterproof.record import canonical
from counterproof.record.deployment_ledger import (
    FILE_NAME,
    HEAD_NAME,
    DeploymentLedger,
    check_witnesses,
)
from counterproof.record.deployment_state import fold
from counterproof.run.deploy import change
from counterproof.run.deploy.change import Promotion
from counterproof.run.deploy.served_file import ServedFile

STUDY = "20260102-030405-kv_cache"
NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture
def written(promotable: Any) -> Any:
    """Drilled, promoted, rolled back, promoted again."""
    change.promote(promotable.store, Promotion(STUDY))
    change.roll_back(promotable.store, "kv_cache", "")
    change.promote(promotable.store, Promotion(STUDY))
    assert len(promotable.ledger.read()) == 4
    return promotable


def lines(shelf: Any) -> list[bytes]:
    return (shelf.store.root / FILE_NAME).read_bytes().splitlines(keepends=True)


def put(shelf: Any, kept: list[bytes]) -> None:
    (shelf.store.root / FILE_NAME).write_bytes(b"".join(kept))


@pytest.mark.parametrize("number", range(4))
def test_an_edited_line_is_refused(written: Any, number: int) -> None:
    found = lines(written)
    event = json.loads(found[number])
    event["study"] = "mine"
    found[number] = canonical.dumps(event) + b"\n"
    put(written, found)
    with pytest.raises(EvidenceError, match=f"line {number + 1} was changed"):
        written.ledger.read()


@pytest.mark.parametrize("number", range(3))
def test_a_removed_line_is_refused(written: Any, number: int) -> None:
    put(written, [line for place, line in enumerate(lines(written)) if place != number])
    with pytest.raises(EvidenceError, match="does not follow its predecessor"):
        written.ledger.read()


@pytest.mark.parametrize("left", range(4))
def test_a_ledger_that_was_cut_off_is_refused_for_reading_and_for_writing(written: Any, left: int) -> None:
    put(written, lines(written)[:left])
    with pytest.raises(EvidenceError, match="was cut off"):
        written.ledger.read()
    with pytest.raises(EvidenceError, match="was cut off"):
        change.roll_back(written.store, "kv_cache", "")
    (written.store.root / FILE_NAME).unlink()
    with pytest.raises(EvidenceError, match="was cut off"):
        written.ledger.read()


def test_a_ledger_cut_off_with_its_head_contradicts_the_studies_journals(written: Any) -> None:
    kept = lines(written)[:2]
    put(written, kept)
    last = json.loads(kept[-1])
    head = {"seq": last["seq"], "hash": last["hash"]}
    (written.store.root / HEAD_NAME).write_bytes(canonical.pretty(head))
    events = written.ledger.read()
    with pytest.raises(EvidenceError, match=f"the journal of {STUDY} names number 2"):
        check_witnesses(written.store, events)
    with pytest.raises(EvidenceError, match="the journal of"):
        change.promote(written.store, Promotion(STUDY))


def test_a_head_that_lags_behind_after_a_crash_is_no_fault(written: Any) -> None:
    first = json.loads(lines(written)[2])
    head = {"seq": first["seq"], "hash": first["hash"]}
    (written.store.root / HEAD_NAME).write_bytes(canonical.pretty(head))
    assert len(written.ledger.read()) == 4
    assert check_witnesses(written.store, written.ledger.read()) == 3  # the stand-in drill was not witnessed


def test_a_torn_end_is_set_aside_by_the_next_writer(written: Any) -> None:
    with (written.store.root / FILE_NAME).open("ab") as stream:
        stream.write(b'{"half": ')
    change.roll_back(written.store, "kv_cache", "")
    kinds = [event["kind"] for event in written.ledger.read()]
    assert kinds == ["drilled", "promoted", "rolled_back", "promoted", "torn_tail", "rolled_back"]
    assert fold(written.ledger.read())["kv_cache"].stack == ()


def test_entries_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    ledger = DeploymentLedger(tmp_path)
    ledger.append("rolled_back", scope="chat", study="s", from_seq=3, checked_utc=NOW.isoformat())
    with pytest.raises(EvidenceError, match=r"line 1 \(rolled_back\) contradicts the rest"):
        fold(ledger.read())
    ledger.append("promoted", scope="chat")
    with pytest.raises(EvidenceError, match="contradicts the rest"):
        fold(ledger.read()[1:])
    with pytest.raises(ValueError, match="no kind"):
        ledger.append("widened")


def test_the_served_file_changes_only_with_the_ledger(promotable: Any, tmp_path: Path) -> None:
    path = tmp_path / "served.json"
    change.promote(promotable.store, Promotion(STUDY))
    file = ServedFile(promotable.ledger, "kv_cache", path)
    first = file.look(NOW)
    assert first is not None
    assert json.loads(path.read_text())["kv_cache.enabled"] is True
    stamp = path.stat().st_ino
    assert file.look(NOW) is None
    promotable.drilled()  # an entry that changes nothing
    assert file.look(NOW) is None
    assert path.stat().st_ino == stamp
    change.roll_back(promotable.store, "kv_cache", "")
    back = file.look(NOW)
    assert back is not None
    assert back.arm == "baseline"
    assert json.loads(path.read_text())["kv_cache.enabled"] is False


def test_the_served_file_goes_back_when_an_override_ends(held: Any, tmp_path: Path) -> None:
    signed = held.signed()
    change.promote(held.store, Promotion(STUDY, override=Path("override.json")))
    path = tmp_path / "served.json"
    file = ServedFile(held.ledger, "kv_cache", path)
    assert file.look(NOW) is not None
    end = datetime.datetime.fromisoformat(signed.expires_utc)
    assert file.look(end - datetime.timedelta(seconds=1)) is None
    back = file.look(end)
    assert back is not None
    assert back.arm == "baseline"
    assert json.loads(path.read_text())["kv_cache.enabled"] is False
    assert len(file.overdue(end)) == 1


def test_a_ledger_that_turns_bad_leaves_the_served_file_as_it_is(written: Any, tmp_path: Path) -> None:
    path = tmp_path / "served.json"
    file = ServedFile(written.ledger, "kv_cache", path)
    assert file.look(NOW) is not None
    before = path.read_bytes()
    put(written, lines(written)[:1])
    with pytest.raises(EvidenceError):
        file.look(NOW)
    assert path.read_bytes() == before


PROVEN = {
    "model_sha256": "1" * 64,
    "dtype": "fp32",
    "device": "cpu",
    "numerics": "fast",
    "hardware": {"cpu_model": "x"},
    "workload": "python_topics",
    "prompt_tokens": [10, 200],
    "output_tokens": [1, 64],
    "concurrency": 4,
}


def test_a_box_lies_inside_itself_and_silence_proves_nothing() -> None:
    assert box.beyond(PROVEN, PROVEN) == []
    for name in box.FIELDS:
        without = {**PROVEN, name: None}
        assert [line.split(":")[0] for line in box.beyond(without, PROVEN)] == [name]
        assert [line.split(":")[0] for line in box.beyond(PROVEN, without)] == [name]
    assert box.beyond({}, {}) != []


@given(
    low=st.integers(0, 300),
    length=st.integers(0, 300),
    name=st.sampled_from(["prompt_tokens", "output_tokens", "concurrency"]),
)
def test_a_span_lies_inside_exactly_when_both_ends_do(low: int, length: int, name: str) -> None:
    asked = {**PROVEN, name: [low, low + length]}
    first, last = box.span(PROVEN[name]) or (0, 0)
    inside = first <= low and low + length <= last
    assert (box.beyond(PROVEN, asked) == []) is inside


def test_spans_of_a_command_line() -> None:
    assert box.parse_span("--concurrency", "8") == [8, 8]
    assert box.parse_span("--prompt-tokens", "10:200") == [10, 200]
    for wrong in ("", "a", "9:3", "-1:4", "1:2:3"):
        with pytest.raises(InputError, match="LOW:HIGH"):
            box.parse_span("--prompt-tokens", wrong)
    with pytest.raises(InputError, match="a scope has no gpu"):
        box.narrowed(PROVEN, {"gpu": 1})


def rounds(factor: float, count: int = 8) -> tuple[list[list[float]], list[list[float]]]:
    control = [[10.0 + 0.01 * number, 11.0] for number in range(count)]
    return [[value * factor for value in one] for one in control], control


@pytest.mark.parametrize(
    ("factor", "count", "status"),
    [(1.0, 8, "equivalent"), (1.02, 8, "equivalent"), (1.2, 8, "different"), (0.8, 8, "different")],
)
def test_latency_after_a_rollback_is_judged_by_two_one_sided_tests(
    factor: float, count: int, status: str
) -> None:
    assert restored.latency_equivalence(*rounds(factor, count), 0.05)["status"] == status


def test_too_few_rounds_and_lost_ones_show_nothing() -> None:
    few = restored.latency_equivalence(*rounds(1.0, 5), 0.05)
    assert (few["status"], few["low"]) == ("not shown", None)
    assert "at least 6" in few["text"]
    with_loss, control = rounds(1.0)
    with_loss[3] = [float("inf")]
    assert restored.latency_equivalence(with_loss, control, 0.05)["status"] == "not shown"


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ({}, ""),
        ({"failed": 1}, "1 of 40 requests failed"),
        ({"by_candidate": 0}, "no request was answered by the candidate"),
        ({"by_restored": 0}, "answered by the restored baseline"),
        ({"configuration_equal": False}, "another configuration"),
        ({"outputs_equal": False}, "outputs after the rollback"),
        ({"latency": {"status": "different", "text": "20 % slower"}}, "20 % slower"),
        ({"latency": {"status": "not shown", "text": "too few"}}, ""),
    ],
)
def test_whatever_is_not_as_before_fails_a_drill(harm: dict[str, Any], said: str) -> None:
    good = {
        "failed": 0,
        "requests": 40,
        "by_candidate": 12,
        "by_restored": 12,
        "configuration_equal": True,
        "outputs_equal": True,
        "latency": {"status": "equivalent", "text": ""},
    }
    found = restored.verdict({**good, **harm})
    assert (said in found) if said else found == ""


def test_commands_list_promote_and_go_back(
    promotable: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from counterproof import cli
    from counterproof.record import views

    monkeypatch.setattr(views, "refresh_deployments", lambda _store: ["MLflow is away"])
    assert cli.main(["deployments"]) == 0
    assert "nothing was ever promoted" in capsys.readouterr().out
    assert cli.main(["rollback"]) == 2
    assert cli.main(["promote", str(promotable.paths.decision), "--scope", "chat"]) == 0
    told = capsys.readouterr()
    assert f"chat: {STUDY}/candidate serves from now on" in told.out
    assert "warning: MLflow is away" in told.err
    assert cli.main(["promote", STUDY, "--scope", "chat"]) == 2
    assert "SERVES_ALREADY" in capsys.readouterr().err
    assert cli.main(["deployments", "--json", "--history"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["scopes"]["chat"]["champion"]["study"] == STUDY
    assert [event["kind"] for event in shown["history"]] == ["drilled", "promoted"]
    assert cli.main(["rollback", "--reason", "trigger"]) == 0
    assert f"chat: {STUDY}/baseline serves again" in capsys.readouterr().out
    assert cli.main(["rollback"]) == 2
    assert cli.main(["deployments", "absent"]) == 2
    assert cli.main(["promote", STUDY, "--concurrency", "1:64"]) == 2
    assert "BEYOND_SCOPE" in capsys.readouterr().err


def test_a_decision_learns_of_drill_review_and_of_what_serves(
    promotable: Any, edited: Callable[..., None]
) -> None:
    change.promote(promotable.store, Promotion(STUDY))
    decision = promotable.judged()
    assert decision["trace"][0]["inputs"]["serving"] is True
    stop = decision["answers"]["stop_and_rollback"]
    assert (stop["drill"]["done"], stop["drill"]["seconds"]) == (True, 1.5)
    report = (promotable.paths.folder / "report.md").read_text()
    assert "Drilled in 1.5 s." in report
    assert "counterproof rollback kv_cache" in report
    edited(promotable.store.root / HEAD_NAME, lambda head: head.update(seq=99))
    decision = promotable.judged()
    assert decision["decision"] == "HOLD"
    assert "cannot be believed" in decision["answers"]["stop_and_rollback"]["drill"]["reason"]
