"""The command line: exit codes, one clear line for an expected error, and a whole study through it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof import cli
from counterproof.commands import outcome
from counterproof.errors import EXIT_INTERRUPTED
from counterproof.record import atomic, code_identity, journal, views
from counterproof.record.store import StudyPaths
from counterproof.run.judge import Judgement

pytestmark = pytest.mark.timeout(200)
SUPPORT = Path(__file__).resolve().parents[2] / "support"
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    store: Path,
    fake_target: Path,
    experiments: Path,
    own_machine: None,
    fixed_code: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """`call("run", ...)` gives (exit code, standard output, standard error). The views have tests of their own."""
    monkeypatch.setattr(views, "refresh", lambda *_: [])

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("run", "absent"), 2, "there is no experiment 'absent'"),
        (("run", "short"), 2, "study.blocks is 2, but an interval needs at least 6"),
        (("run", "short", "--exploratory", "+engine.x=1"), 2, "'+', '++' and '~' are refused"),
        (("run", "short", "--exploratory", "~engine.model"), 2, "'+', '++' and '~' are refused"),
        (
            ("run", "short", "--exploratory", "engine.kv_cache.block_tokens=16.0"),
            2,
            "must be int, not float 16.0",
        ),
        (
            ("run", "short", "--exploratory", "--candidate", "engine.kv_cache.enabled=false"),
            2,
            "nothing differs",
        ),
        (("run", "short", "--exploratory", "--candidate", "engine.dtype=bf16"), 2, "changes 1 key"),
        (
            *[
                (
                    "run",
                    "short",
                    "--exploratory",
                    "--candidate",
                    "engine.kv_cache.enabled=true",
                    "--candidate",
                    "engine.dtype=bf16",
                )
            ],
            2,
            "changes 2 keys",
        ),
        (("run", "short", "--exploratory", "--study", "../up"), 2, "cannot name a study"),
        (("run", "short", "--exploratory", "--blocks", "0"), 2, "between 1 and 99"),
        (("run", "short", "--exploratory", "target=absent"), 2, "there is no target 'absent'"),
        (("run", "short", "--exploratory", "engine.model=absent"), 3, "the model 'absent' is not there"),
        (("resume", "absent"), 2, "there is no study 'absent'"),
        (("step", "absent", "--block", "0", "--arm", "baseline"), 2, "there is no study 'absent'"),
        (("show", "absent"), 2, "there is no study 'absent'"),
        (("report", "absent"), 2, "there is no study 'absent'"),
        (("diff", "absent"), 2, "there is no study 'absent'"),
        (("diff", "absent/baseline"), 2, "one thing alone cannot differ"),
        (("run", "../short"), 2, "there is no experiment '../short'"),
        (("run", "SHORT"), 2, "there is no experiment 'SHORT'"),
        (("run", "short", "--exploratory", "primary.metric=tpot"), 2, "there is no metric 'tpot'"),
        (("run", "short", "workload.request=3"), 2, "did you mean workload.requests"),
    ],
)
def test_expected_errors_are_one_clear_line_and_leave_nothing(
    call: Call, store: Path, arguments: tuple[str, ...], code: int, line: str
) -> None:
    found, out, err = call(*arguments)
    assert found == code
    assert out == ""
    assert err.startswith("error: ")
    assert line in err.splitlines()[0]
    assert "Traceback" not in err
    studies = store / "studies"
    assert not studies.exists() or list(studies.iterdir()) == []


def test_near_names_are_suggested(call: Call, new_study: Callable[..., StudyPaths]) -> None:
    new_study(name="my-study")
    assert "did you mean short?" in call("run", "shrt")[2]
    assert "did you mean my-study?" in call("show", "my-stody")[2]
    code, _, err = call("diff", "my-study/baseline", "my-study/candidat")
    assert (code, "did you mean candidate?" in err) == (2, True)


@pytest.mark.parametrize("content", [b"defaults:\n  - [open\n", b"\xff\xfe", b"name: x\n", b""])
def test_a_malformed_experiment_is_one_clear_line(call: Call, experiments: Path, content: bytes) -> None:
    (experiments / "broken.yaml").write_bytes(content)
    code, _, err = call("run", "broken", "--exploratory")
    assert code == 2
    assert err.startswith("error: broken ")
    assert "Traceback" not in err


def test_a_list_refuses_what_was_tampered_with_and_shows_the_others(
    call: Call, new_study: Callable[..., StudyPaths]
) -> None:
    paths = {name: new_study(name=name) for name in ("forged", "odd", "planned", "whole")}
    atomic.write_json(paths["forged"].comparison, {"valid": True})
    atomic.write_json(paths["forged"].decision, {"decision": "PROMOTE"})
    paths["odd"].plan.write_text('{"workload": [1], "schedule": [], "experiment": "x"}')
    plan = json.loads(paths["planned"].plan.read_text())
    atomic.write_json(paths["planned"].plan, {**plan, "exploratory": False})
    code, out, _ = call("list")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "PROMOTE" not in out
    assert "REFUSED: comparison.json" in lines["forged"]
    assert "REFUSED: plan.json" in lines["odd"]
    assert "REFUSED: plan.json" in lines["planned"]
    assert "0/10" in lines["whole"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_store_that_cannot_be_written_is_one_clear_line(
    call: Call, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(*_: Any) -> None:
        raise OSError(number, os.strerror(number), "a file")

    monkeypatch.setattr(atomic, "write_bytes", full)
    code, _, err = call("run", "short", "--exploratory", "--study", "s")
    assert code == 3
    assert os.strerror(number) in err
    assert "COUNTERPROOF_STORE" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["run"], ["run", "x", "--no"], ["resume", "s", "engine.dtype=fp32"]]
)
def test_wrong_usage_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_dirty_checkout_is_refused_unless_exploratory(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    dirty = code_identity.CodeIdentity("git", "0" * 40, "d" * 64, (" M engine/x.py", "?? new.py"), "l")
    monkeypatch.setattr(code_identity, "identify", lambda start=None: dirty)
    code, _, err = call("run", "short", "study.probes=true", "--blocks", "6")
    assert code == 2
    assert "uncommitted changes" in err.splitlines()[0]
    assert " M engine/x.py" in err
    assert "?? new.py" in err


def test_a_study_from_start_to_report(call: Call, store: Path) -> None:
    code, out, err = call(
        *("run", "short", "--exploratory", "--study", "s", "--blocks", "1", "workload.requests=4")
    )
    # One block can show nothing, so the evidence is invalid and said to be.
    assert code == 5
    lines = dict(line.split(None, 1) for line in out.splitlines())
    assert lines["study"] == "s (1 of 1 blocks)"
    assert lines["evidence"].startswith("INVALID")
    assert lines["decision"].startswith("HOLD")
    assert Path(lines["report"]).is_file()
    assert "exploratory: this study can never claim anything" in err
    assert "[ 1/6] equivalence baseline" in err
    paths = StudyPaths(store / "studies" / "s")
    events = [event["kind"] for event in journal.read(paths.journal).events]
    assert events[0] == "study_started"
    assert events[-3:] == ["compared", "decided", "reported"]
    assert json.loads(paths.plan.read_text())["workload"]["requests"] == 4

    code, out, _ = call("list")
    assert code == 0
    assert out.splitlines()[1].split()[:4] == ["s", "short", "(exploratory)", "6/6"]
    code, out, _ = call("show", "s")
    assert code == 0
    assert "engine.kv_cache.enabled: false -> true" in out
    # What was found stands first, the records to check it with after.
    order = ["The evidence is invalid", "Hold:", "noise floor", "decision", "varies", "sealed run"]
    assert sorted(order, key=out.index) == order
    code, out, _ = call("show", "s/00-baseline-1")
    assert code == 0
    assert '"phase": "timed"' in out
    assert call("show", "s/00-baseline-9")[0] == 2
    code, out, _ = call("diff", "s")
    assert code == 0
    assert "config: 1 difference" in out
    assert "environment: 0 differences" in out
    assert call("diff", "s/baseline", "s/slowed")[0] == 1
    assert call("diff", "s/00-baseline-1", "s/00-again-1")[0] == 0
    assert call("report", "s")[0] == 0
    sealed = [e["run"] for e in journal.read(paths.journal).events if e["kind"] == "run_sealed"]
    assert call("resume", "s")[0] == 5
    assert [e["run"] for e in journal.read(paths.journal).events if e["kind"] == "run_sealed"] == sealed
    assert call("run", "short", "--exploratory", "--study", "s")[0] == 2

    victim = paths.runs / "00-slowed-1" / "requests.parquet"
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    for arguments in (("show", "s"), ("report", "s"), ("resume", "s"), ("diff", "s")):
        code, _, err = call(*arguments)
        assert code == 5, arguments
        assert "00-slowed-1/requests.parquet was changed" in err.splitlines()[-1] + err.splitlines()[0]


def test_single_steps_keep_the_order(call: Call, new_study: Callable[..., StudyPaths]) -> None:
    paths = new_study("study.equivalence_requests=1", "study.blocks=1")
    code, _, err = call("step", "s", "--block", "0", "--arm", "candidate")
    assert (code, "before a sealed baseline" in err) == (2, True)
    code, _, err = call("step", "s", "--block", "eq", "--arm", "candidate")
    assert (code, "before a sealed baseline" in err) == (2, True)
    assert call("step", "s", "--block", "0", "--arm", "baseline")[0] == 0
    assert call("step", "s", "--block", "0", "--arm", "candidate")[0] == 0
    assert call("step", "s", "--block", "0", "--arm", "candidate")[0] == 2
    assert call("step", "s", "--block", "one", "--arm", "candidate")[0] == 2
    assert [folder.name for folder in paths.run_folders()] == ["00-baseline-1", "00-candidate-1"]


def test_a_candidate_that_always_crashes_ends_with_4_and_a_report(
    call: Call, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps({"crash": "candidate"}))
    code, _, err = call("run", "short", "--exploratory", "--study", "s", "study.equivalence_requests=0")
    assert code == 4
    assert "killed by SIGKILL" in err
    assert "report so far" in err
    assert (store / "studies" / "s" / "report.html").is_file()
    decision = json.loads((store / "studies" / "s" / "decision.json").read_text())
    assert decision["decision"] != "PROMOTE"


def test_an_end_request_interrupts_ends_the_children_and_can_be_resumed(
    call: Call, new_study: Callable[..., StudyPaths], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = new_study("study.equivalence_requests=0")
    monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps({"hang": True}))
    command = [sys.executable, str(SUPPORT / "harness_driver.py"), "--cli", "resume", "s"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not any(paths.runs.glob("*/samples.jsonl")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED
    assert "counterproof resume s" in err
    assert "Traceback" not in err
    kinds = [event["kind"] for event in journal.read(paths.journal).events]
    assert kinds == ["study_started", "resumed", "run_started", "run_lost", "interrupted"]
    monkeypatch.delenv("COUNTERPROOF_FAKE")
    first = f"00-{json.loads(paths.plan.read_text())['schedule'][0][0]}"
    assert call("step", "s", "--block", "0", "--arm", first.split("-")[1])[0] == 0
    assert (paths.runs / f"{first}-2" / "manifest.json").is_file()
    assert not (paths.runs / f"{first}-1" / "manifest.json").exists()


def outcome_of(decision: str, valid: bool = True) -> Judgement:
    return Judgement({"valid": valid}, {"decision": decision})


@pytest.mark.parametrize(
    ("decision", "valid", "plain", "gated"),
    [
        ("HOLD", True, 0, 5),
        ("CONTINUE", True, 0, 5),
        ("ROLLBACK", True, 0, 1),
        ("PROMOTE", True, 0, 0),
        ("HOLD", False, 5, 5),
        ("ROLLBACK", False, 5, 5),
    ],
)
def test_exit_codes_follow_evidence_and_with_a_gate_the_decision(
    decision: str, valid: bool, plain: int, gated: int
) -> None:
    found = outcome_of(decision, valid)
    assert outcome.exit_code(found, gate=False) == plain
    assert outcome.exit_code(found, gate=True) == gated


def test_a_plugin_that_cannot_be_loaded_is_told_and_left_out(
    fake_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = fake_target / "counterproof_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counterproof-broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[counterproof.commands]\nbroken = absent_module:register\n")
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    captured = capsys.readouterr()
    assert caught.value.code == 0
    assert "the command 'broken' is not available" in captured.err
    assert "packet" in captured.out


def test_own_commands_do_not_load_plugins(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    from counterproof.commands import plugins

    monkeypatch.setattr(plugins, "register", lambda _: pytest.fail("loaded"))
    assert cli.main(["list"]) == 0


def test_a_defect_is_no_evidence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Python would exit with 1, which means evidence against the candidate."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(cli, "_parse", broken)
    assert cli.main(["list"]) == 4
    assert "a defect" in capsys.readouterr().err


def test_doctor_checks_clock_code_models_and_invariance(call: Call) -> None:
    code, out, _ = call("doctor")
    status = {line.split("  ")[0].strip(): line for line in out.splitlines()}
    assert code == 0
    assert {
        "clock",
        "timer",
        "cores",
        "load",
        "memory",
        "store",
        "code",
        "versions",
        "model tiny",
    } <= status.keys()
    for dtype in ("fp32", "bf16"):
        assert "self-test passed" in status[f"invariant {dtype}"]


def test_doctor_says_why_the_native_kernels_are_not_used(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTAGLIO_NATIVE_ISA", "off")
    code, out, err = call("doctor")
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith("invariant ")]
    assert all("warning" in line and "self-test passed" in line for line in lines)
    assert "not the native kernels: switched off" in out + err


@pytest.mark.slow
def test_the_whole_spine_with_the_real_engine(call: Call, store: Path) -> None:
    """The KV-cache experiment on the model that ships: study, comparison, decision, packet, replay."""
    code, out, err = call(
        *("run", "kv_cache", "engine=tiny", "engine.threads.count=1", "study.slowed_delay_us=3000"),
        *("study.equivalence_requests=3", "--blocks", "1", "--exploratory", "--study", "spine", "--packet"),
    )
    assert code == 5, err
    folder = store / "studies" / "spine"
    comparison = json.loads((folder / "comparison.json").read_text())
    assert comparison["equivalence"]["equal"] is True
    # What KV is stored was predicted to the byte: 2 x layers x KV heads x head size x 2 bytes, in whole blocks.
    assert comparison["memory"]["arms"]["candidate"]["measured_kv_bytes"] == [
        comparison["memory"]["registered_bytes"]
    ]
    requests = 11
    counters = {
        arm: json.loads((folder / "runs" / f"00-{arm}-1" / "manifest.json").read_text())["counters"]
        for arm in ("baseline", "candidate")
    }
    assert counters["candidate"]["tokens_generated"] == requests * 24
    prompt = counters["candidate"]["prefill_tokens"]
    assert counters["candidate"]["tokens_computed"] == prompt + requests * 23
    # Without a cache the i-th of 24 tokens costs prompt + i - 1 computations.
    assert counters["baseline"]["tokens_computed"] == 24 * prompt + requests * sum(range(24))
    assert "packet" in out
    # Called by its id alone: a file name that tells the study would tell a reviewer the experiment.
    assert [len(p.name) for p in (folder / "packets").glob("*.rep.zip")] == [len("0123456789abcdef.rep.zip")]
    assert "replayed" in out or "controls did not hold" in out
