"""The runners' protocol, cells as files, and the command line, with processes that stand in for engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.peers import catalogue, cells, compare, environments, machine
from benchmarks.peers.cells import Contestant, Setting
from benchmarks.peers.runners.protocol import Batch, Task

ROOT = Path(__file__).resolve().parents[2]
ENGINE = """
import os, sys
from benchmarks.peers.runners.protocol import Batch, UnsupportedTaskError, serve
class Engine:
    def __init__(self, task):
        if task.dtype == "bf16":
            raise UnsupportedTaskError("no bf16")
        self.short = task.options.get("short", 0)
        print("a library that talks on standard output")
        os.system("echo so does its child")
    def run(self, prompts, new):
        batch = Batch.begin(len(prompts))
        for at in range(new - self.short):
            for row, prompt in enumerate(prompts):
                batch.put(row, [prompt[-1] + at])
        return batch
    def facts(self):
        return {"kind": "stand-in"}
sys.exit(serve(Engine, ("numpy", "no-such-package")))
"""


def _task(**changes: object) -> Task:
    values = {
        "model": "m",
        "prepared": {},
        "dtype": "fp32",
        "threads": 1,
        "wait_policy": "passive",
        "cache": True,
        "prefix_cache": False,
        "warm": [[5]],
        "warm_new": 1,
        "batches": [[[1, 2], [7]]],
        "new": 3,
        "options": {},
    }
    return Task(**(values | changes))  # type: ignore[arg-type]


def _serve(task: Task) -> subprocess.CompletedProcess[str]:
    from dataclasses import asdict

    return subprocess.run(
        [sys.executable, "-c", ENGINE],
        input=json.dumps(asdict(task)),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


def test_a_runner_answers_with_times_and_tokens_whatever_its_library_prints() -> None:
    done = _serve(_task())
    assert done.returncode == 0, done.stderr
    assert "talks on standard output" in done.stderr
    answer = json.loads(done.stdout)
    requests = answer["batches"][0]["requests"]
    assert [request["tokens"] for request in requests] == [[2, 3, 4], [7, 8, 9]]
    assert all(0 < request["ttft_ms"] <= request["total_ms"] for request in requests)
    assert answer["batches"][0]["wall_ms"] == max(request["total_ms"] for request in requests)
    assert answer["peak_rss_mib"] > 1
    assert set(answer["versions"]) == {"python", "numpy"}
    assert answer["facts"] == {"kind": "stand-in"}


def test_a_runner_says_what_it_cannot_do() -> None:
    assert json.loads(_serve(_task(dtype="bf16")).stdout)["unsupported"] == "no bf16"


def test_missing_tokens_are_a_failure_not_a_result() -> None:
    done = _serve(_task(options={"short": 1}))
    assert done.returncode != 0
    assert "returned 2 tokens instead of 3" in done.stderr
    assert done.stdout == ""


def test_a_task_knows_what_its_largest_batch_needs() -> None:
    task = _task(warm=[[1] * 4] * 3, warm_new=2)
    assert (task.longest(), task.widest(), task.positions()) == (6, 3, 18)
    assert _task(warm=[]).positions() == 9
    batch = Batch.begin(2)
    batch.put(1, [4, 5])
    assert batch.tokens == [[], [4, 5]]
    assert batch.stamps[1][0] >= batch.start


def _setting(tmp_path: Path, timeout_s: float) -> Setting:
    return Setting(tmp_path, tmp_path / "model", 1, "passive", timeout_s, sys.executable)


def _peer(tmp_path: Path, script: str) -> None:
    """A peer whose interpreter is a shell script."""
    python = catalogue.python_of(tmp_path, "llamacpp")
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


PEER = Contestant("llamacpp", "llama.cpp", "llamacpp")


def test_a_crash_is_an_answer_that_names_no_folder(tmp_path: Path) -> None:
    _peer(tmp_path, "echo 'Error: cannot open /some/where/model.gguf' >&2; exit 3")
    answer = cells.run(_task(), PEER, _setting(tmp_path, 30))
    assert answer == {"failed": "exit status 3: Error: cannot open model.gguf"}


def test_a_process_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    _peer(tmp_path, f"sleep 300 & echo $! > {tmp_path}/child; wait")
    began = time.monotonic()
    answer = cells.run(_task(), PEER, _setting(tmp_path, 1.0))
    assert answer == {"failed": "took more than 1 s"}
    assert time.monotonic() - began < 30
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _alive(child):
        os.sched_yield()
    assert not _alive(child)


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    try:
        return "State:\tZ" not in status.read_text()
    except OSError:
        return False


def test_a_peer_that_is_not_there_is_an_answer(tmp_path: Path) -> None:
    assert "cannot start" in cells.run(_task(), PEER, _setting(tmp_path, 5))["failed"]


def test_processes_get_the_threads_and_not_the_callers_path(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    _peer(tmp_path, 'echo "{\\"seen\\": \\"$OMP_NUM_THREADS $OMP_WAIT_POLICY $PYTHONPATH\\"}"')
    assert cells.run(_task(), PEER, _setting(tmp_path, 30))["seen"] == "1 passive "


def test_cells_are_taken_up_again_only_when_they_are_the_same_and_done(tmp_path: Path) -> None:
    identity = {"case": "a"}
    assert cells.kept(tmp_path, "one", identity) is None
    cells.keep(tmp_path, "one", identity, {"batches": []})
    assert cells.kept(tmp_path, "one", identity)["answer"] == {"batches": []}
    assert cells.kept(tmp_path, "one", {"case": "b"}) is None
    cells.keep(tmp_path, "one", identity, {"failed": "it crashed"})
    assert cells.kept(tmp_path, "one", identity) is None
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_records_say_what_is_installed_and_what_is_missing(tmp_path: Path) -> None:
    assert environments.read_record(tmp_path, "vllm") is None
    record = environments.Record("vllm", False, reason="no wheel", missing={"bf16": "not written"})
    environments.write_record(tmp_path, record)
    assert environments.read_record(tmp_path, "vllm") == record


def test_a_step_that_fails_gives_its_last_words() -> None:
    with pytest.raises(environments.StepError, match="ERROR: no such thing"):
        environments.run(["sh", "-c", "echo ERROR: no such thing >&2; echo and more >&2; exit 1"], "a step")


def test_an_installation_that_fails_is_recorded_and_not_fatal(tmp_path: Path, monkeypatch) -> None:
    def refuse(command: list[str], *_: object) -> str:
        raise environments.StepError(f"{command[0]} refused")

    monkeypatch.setattr(environments, "run", refuse)
    peer = catalogue.Peer("odd", "Odd", ("odd==1",))
    record = environments.install(tmp_path, peer, jobs=1)
    assert not record.installed
    assert record.reason.endswith("refused")
    assert environments.read_record(tmp_path, "odd") == record


def test_every_peer_has_a_runner_and_pinned_packages() -> None:
    for name, peer in catalogue.PEERS.items():
        assert (ROOT / "benchmarks" / "peers" / "runners" / f"{name}.py").is_file()
        assert all("==" in package for package in peer.packages + peer.tools)


@pytest.mark.parametrize("text", ["w1", "w9/bf16", "w1/int3", "w1/bf16/x"])
def test_a_case_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SystemExit, match="no case"):
        compare._cases(compare._arguments(["--case", text]))


def test_cases_are_pairs_or_the_product() -> None:
    assert compare._cases(compare._arguments(["--case", "w1/bf16", "w2/fp32"])) == [
        ("w1", "bf16"),
        ("w2", "fp32"),
    ]
    both = compare._arguments(["--workload", "w1", "--dtype", "bf16", "fp32"])
    assert compare._cases(both) == [("w1", "bf16"), ("w1", "fp32")]


def test_own_contestants_take_settings_of_any_type() -> None:
    assert compare._options("a.b=true,c=3,d=text") == {"a.b": True, "c": 3, "d": "text"}
    with pytest.raises(SystemExit, match="path=value"):
        compare._options("a.b")


def test_contestants_are_ours_and_what_is_installed(tmp_path: Path) -> None:
    environments.write_record(tmp_path, environments.Record("openvino", True))
    environments.write_record(tmp_path, environments.Record("vllm", False, reason="no wheel"))
    args = compare._arguments(["--intaglio", "plain cache:kv_cache.format=fp32"])
    chosen = compare._contestants(args, tmp_path)
    unshared = ["intaglio-invariant-unshared", "intaglio-fast-unshared"]
    names = [contestant.name for contestant in chosen]
    assert names == ["intaglio-invariant", "intaglio-fast", *unshared, "intaglio-plain-cache", "openvino"]
    assert {one.name for one in chosen if one.only == ("w3",)} == set(unshared)
    assert all(one.options["prefix_cache.enabled"] is False for one in chosen if one.only)
    with pytest.raises(SystemExit, match="no wheel"):
        compare._contestants(compare._arguments(["--peers", "vllm"]), tmp_path)


def test_machine_facts_name_no_host_and_no_folder() -> None:
    text = json.dumps(machine.facts() | machine.code(ROOT))
    assert os.uname().nodename not in text or len(os.uname().nodename) < 3
    assert str(ROOT) not in text
    assert "usable cores" in machine.facts()
