"""The closed loop's stamps and rows, the guards, the child's environment, progress."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof.errors import RefusedError
from counterproof.record.store import RunKey
from counterproof.run import guard, sampler
from counterproof.run.child_env import child_environment
from counterproof.run.closed_loop import ClosedLoop, index_of, token_sha256
from counterproof.run.places import Place
from counterproof.run.progress import BarProgress, LineProgress, TimeLeft, show_progress
from counterproof.workload.sealed import SealedRequest
from intaglio.config import ThreadsConfig, from_flat


@pytest.fixture
def make_target(fake_target: Path) -> Callable[..., Any]:
    from counterproof.run.targets import registry

    return lambda **values: registry.find("fake").start(from_flat(values))


def requests(count: int, tokens: int = 3) -> list[SealedRequest]:
    return [SealedRequest(i, (i + 1, 2, 3), tokens, seed=i) for i in range(count)]


@pytest.mark.parametrize("concurrency", [1, 2, 5, 9])
def test_slots_are_filled_and_scheduled_when_they_become_free(
    make_target: Callable[..., Any], concurrency: int
) -> None:
    rows = ClosedLoop(make_target(), requests(7), concurrency, 60.0).run()
    assert [row["request_index"] for row in rows.requests] == list(range(7))
    assert {row["status"] for row in rows.requests} == {"ok"}
    done = sorted(row["done_ns"] for row in rows.requests)
    for row in rows.requests:
        assert row["scheduled_ns"] <= row["enqueued_ns"] <= row["sent_ns"] < row["first_token_ns"]
        assert row["first_token_ns"] < row["last_token_ns"] <= row["done_ns"]
        if row["request_index"] >= concurrency:
            assert row["scheduled_ns"] in done
        else:
            assert row["scheduled_ns"] == rows.requests[0]["scheduled_ns"]
    assert max(gauge["running"] for gauge in rows.readings.gauges) == min(concurrency, 7)
    assert len(rows.tokens) == 21
    assert {row["request_index"] for row in rows.readings.stages} == set(range(7))
    assert not any("request_id" in row for row in rows.readings.stages)


def test_outputs_and_hashes_belong_together(make_target: Callable[..., Any]) -> None:
    rows = ClosedLoop(make_target(), requests(2), 1, 60.0).run()
    for row, output in zip(rows.requests, rows.outputs, strict=True):
        assert row["output_sha256"] == token_sha256(output["token_ids"])
        assert row["output_tokens"] == len(output["token_ids"]) == 3
    # Computed outside of Python: printf '\\1\\0\\0\\0\\377\\377\\377\\377' | sha256sum
    assert token_sha256([1, -1]) == "b15348c8f462384c01e83b6d499c6faf3f96808f5aa07c6bab4b65b36b4445d4"
    assert index_of("r0000012") == 12
    assert index_of("warm") is None


def test_the_child_gets_an_allow_list_and_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "99")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker.invalid")
    monkeypatch.setenv("COUNTERPROOF_STORE", "/s")
    found = child_environment(ThreadsConfig(count=3, wait_policy="active"))
    assert not {"SECRET_TOKEN", "MLFLOW_TRACKING_URI"} & found.keys()
    assert (found["OMP_NUM_THREADS"], found["OMP_WAIT_POLICY"]) == ("3", "ACTIVE")
    assert found["COUNTERPROOF_STORE"] == "/s"
    assert child_environment(ThreadsConfig())["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))


PLAN = {
    "diff": [{"path": "engine.kv_cache.enabled", "baseline": False, "candidate": True}],
    "factor": {
        "moves": {"effective": ["kv_cache.enabled", "kv_cache.blocks"], "environment": ["k"], "model": ["d"]}
    },
    "environment": {"code.sha": "a", "model.w": "1"},
}
REFERENCE = guard.Reference(
    "00-baseline-1", {"kv_cache.enabled": False, "kv_cache.blocks": 0, "x": 1}, {"id": {"k": "1", "cpu": "c"}}
)


def check(arm: str, effective: dict[str, Any], identity: dict[str, Any] | None = None) -> None:
    merged = {**REFERENCE.effective, **effective}
    guard.check_run(arm, PLAN, merged, {"id": {**REFERENCE.environment["id"], **(identity or {})}}, REFERENCE)


def test_only_declared_differences_pass_the_guard() -> None:
    check("candidate", {"kv_cache.enabled": True, "kv_cache.blocks": 9}, {"k": "2"})
    check("again", {})
    check("slowed", {"inject.step_delay_us": 5})
    refused: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("candidate", {"kv_cache.enabled": True, "x": 1.0}, {}),
        ("candidate", {"kv_cache.enabled": True}, {"cpu": "d"}),
        ("candidate", {"kv_cache.blocks": 9}, {}),
        ("again", {"kv_cache.blocks": 9}, {}),
        ("again", {}, {"k": "2"}),
        ("slowed", {"inject.step_delay_us": 5, "x": 2}, {}),
    ]
    for arm, effective, identity in refused:
        with pytest.raises(RefusedError):
            check(arm, effective, identity)


def test_code_and_model_must_be_those_registered() -> None:
    guard.check_common(PLAN, {"code.sha": "a", "model.w": "1"})
    for other in (
        {"code.sha": "b", "model.w": "1"},
        {"code.sha": "a"},
        {"code.sha": "a", "model.w": "1", "new": 1},
    ):
        with pytest.raises(RefusedError):
            guard.check_common(PLAN, other)


def test_the_sampler_sees_a_process_until_it_is_gone() -> None:
    stream = io.StringIO()
    import subprocess

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"]) as process:
        sampler.watch(process.pid, stream)
        process.wait(30)
    assert stream.getvalue().count("rss_bytes") >= 2
    gone = io.StringIO()
    sampler.watch(process.pid, gone)
    assert gone.getvalue() == ""


def left() -> TimeLeft:
    plan = {"blocks": 2, "workload": {}, "schedule": [["baseline", "candidate"], ["candidate", "baseline"]]}
    return TimeLeft(plan, [Place(b, arm) for b in (0, 1) for arm in ("baseline", "candidate")])


def test_time_left_comes_from_runs_of_the_same_arm() -> None:
    time_left = left()
    assert time_left.text() == ""
    time_left.ended(RunKey(0, "baseline", 1), 100.0)
    assert time_left.text() == "about 5 min left"
    time_left.ended(RunKey(0, "candidate", 1), 10.0)
    assert time_left.text() == "about 2 min left"
    time_left.ended(RunKey(1, "baseline", 1), 100.0)
    assert time_left.text() == "about 10 s left"
    assert time_left.label(RunKey(1, "candidate", 1)) == "block 2/2 candidate"
    assert time_left.label(RunKey(None, "candidate", 1)) == "equivalence candidate"


def test_progress_is_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with LineProgress(left()) as progress:
        progress.run_started(RunKey(0, "baseline", 1), 1, 4)
        progress.requests_done(1, 3)
        progress.run_ended(RunKey(0, "baseline", 1), "sealed after 1.0 s")
        progress.waiting("another run")
    text = capsys.readouterr().err
    assert "[ 1/4] block 1/2 baseline" in text
    assert "sealed after 1.0 s, about" in text
    assert "waiting for another run" in text
    plan = {"blocks": 1, "workload": {}, "schedule": []}
    assert isinstance(show_progress(plan, []), LineProgress)


def test_bars_follow_the_same_calls(capsys: pytest.CaptureFixture[str]) -> None:
    with BarProgress(left()) as progress:
        progress.run_started(RunKey(0, "baseline", 1), 1, 4)
        progress.requests_done(2, 3)
        progress.run_ended(RunKey(0, "baseline", 1), "failed: [why]")
        progress.waiting("another run")
    assert "failed: [why]" in capsys.readouterr().err
