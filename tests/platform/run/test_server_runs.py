"""Runs whose target is a server: the whole record of one, no process left, and intaglio's own server behind a client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from counterproof.errors import ExecutionError
from counterproof.measure.load import load_study
from counterproof.measure.metrics import run_value
from counterproof.plan.schema import ServerConfig
from counterproof.record.store import StudyPaths, open_store
from counterproof.run import client_load
from counterproof.run.places import Place
from counterproof.run.register import StudyRequest, register
from counterproof.run.runner import StudyRunner
from counterproof.run.targets.http.kinds import IntaglioHttp
from counterproof.workload.sealed import SealedRequest
from intaglio.config import from_flat

TOKENS = (
    "target=openai",
    "server=instant",
    "engine=tiny",
    "study.blocks=1",
    "workload.requests=12",
    "workload.rate_per_s=100.0",
    "workload.max_new_tokens=4",
)


@pytest.fixture
def server_study(
    store: Path, experiments: Path, own_machine: None, fixed_code: None
) -> Callable[..., StudyPaths]:
    def make(*more: str) -> StudyPaths:
        return register(
            open_store(), StudyRequest("server_calibration", (*TOKENS, *more), (), "s", exploratory=True)
        )

    return make


def test_a_servers_run_is_recorded_whole(
    server_study: Callable[..., StudyPaths],
    runner_of: Callable[[StudyPaths], StudyRunner],
    measured_processes: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "sk-never-to-be-written")
    paths = server_study("server.key_variable=SECRET_OF_MINE")
    runner = runner_of(paths)
    runner.run_place(Place(0, "baseline"))
    assert measured_processes() == []
    run = load_study(paths.folder).runs[(0, "baseline")]
    assert run.remote
    assert (run.requests["status"] == "ok").all()
    assert run.requests["tokens_computed"].isna().all()
    assert len(run.tokens) == 0
    assert run.chunks is not None
    assert len(run.chunks) == 48
    assert run_value(run, "itl_ms", "p50").value is None
    assert "inter_chunk_ms" in run_value(run, "itl_ms", "p50").reason
    assert run_value(run, "inter_chunk_ms", "p50").value is not None
    assert run_value(run, "peak_rss_bytes", "peak").value is not None
    assert set(run.resources["source"]) == {"client", "sampler"}
    (client,) = [event for event in run.events if event["kind"] == "client"]
    assert (client["mode"], client["remote"], client["stated_tokens"]) == ("open", True, 48)
    assert run.effective["server.command"].startswith("{python} -m ")
    scheduled = run.requests["scheduled_ns"].diff().dropna()
    assert (scheduled > 0).all()
    written = b"".join(path.read_bytes() for path in paths.folder.rglob("*") if path.is_file())
    assert b"sk-never-to-be-written" not in written
    assert b"SECRET_OF_MINE" in written


def test_a_server_that_does_not_come_up_fails_the_run_with_its_reason(
    server_study: Callable[..., StudyPaths],
    runner_of: Callable[[StudyPaths], StudyRunner],
    experiments: Path,
    measured_processes: Callable[[], list[str]],
) -> None:
    command = ["{python}", "-c", "raise SystemExit('no such model')"]
    (experiments / "server" / "instant.yaml").write_text(f"command: {json.dumps(command)}\n")
    runner = runner_of(server_study("study.attempts=1"))
    with pytest.raises(ExecutionError, match="ended with code 1 before it could become healthy") as caught:
        runner.run_place(Place(0, "baseline"))
    assert any("no such model" in line for line in caught.value.details)
    assert measured_processes() == []


def test_intaglios_own_server_says_what_it_runs_and_counts(tmp_path: Path) -> None:
    engine = from_flat({"model": "tiny", "threads.count": 1, "scheduler.max_running": 3})
    target = IntaglioHttp().connect(engine, ServerConfig(ready_s=120.0), tmp_path)
    try:
        before = target.counters()
        work = [SealedRequest(i, (5 + i, 6, 7, 8), 6, seed=i, ignore_eos=True) for i in range(4)]
        rows, client = client_load.run(target, work, 2, 60.0)
        effective, after = target.effective_config(), target.counters()
    finally:
        target.close()
    assert {row["status"] for row in rows.requests} == {"ok"}
    assert [row["output_tokens"] for row in rows.requests] == [6, 6, 6, 6]
    assert all(len(output["token_ids"]) == 6 for output in rows.outputs)
    assert (client["stated_tokens"], client["own_tokens"], client["prompts_unlike"]) == (24, 24, 0)
    assert effective["scheduler.max_running"] == 3
    assert effective["model.architecture"] == "llama"
    assert after["tokens_generated"] - before["tokens_generated"] == 24
    samples = [json.loads(line) for line in (tmp_path / "server_samples.jsonl").read_text().splitlines()]
    assert max(row.get("rss_bytes", 0) for row in samples) > 50_000_000
    assert any(row["source"] == "engine" and "running" in row for row in samples)
    assert not any("serve" in " ".join(_command(p)) for p in psutil.Process().children(recursive=True))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def test_tpot_of_a_server_exists_only_where_a_chunk_is_a_token() -> None:
    from counterproof.measure.latency import chunked

    latencies = pd.DataFrame(
        {"request_index": [0, 1], "ok": [True, True], "output_tokens": [2.0, 5.0], "tpot_ms": [1.0, 1.0]}
    )
    chunks = pd.DataFrame({"request_index": [0, 0, 1, 1]})
    found: Any = chunked(latencies, chunks)["tpot_ms"].tolist()
    assert found[0] == 1.0
    assert pd.isna(found[1])
