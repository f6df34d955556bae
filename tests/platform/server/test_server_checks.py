"""What a plan may say of a server, and how a command becomes a process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from counterproof.errors import ExecutionError, InputError
from counterproof.plan import prereg
from counterproof.plan.server_checks import server_faults
from counterproof.run.child_env import child_environment
from counterproof.run.targets.http.kinds import address_of, serve_command
from counterproof.run.targets.http.server_process import ServerProcess, assignments, fill
from intaglio.config import EngineConfig, ThreadsConfig, from_flat, parse_overrides

OPENAI = ("target=openai", "server=instant")


def faults(*overrides: str) -> list[str]:
    return list(server_faults(prereg.compose_arms("server_calibration", overrides).baseline.config))


def test_the_projects_own_servers_pass() -> None:
    assert faults() == []
    assert faults(*OPENAI) == []
    assert faults("target=openai", "server=attached", "server.key_variable=MY_KEY") == []


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("target=openai",), "server.base_url"),
        ((*OPENAI, "server.base_url='http://127.0.0.1:1'"), "exclude each other"),
        ((*OPENAI, "study.equivalence_requests=4"), "study.equivalence_requests must be 0"),
        ((*OPENAI, "server.key_variable='sk-123'"), "server.key_variable"),
        ((*OPENAI, "server.api=responses"), "server.api"),
        ((*OPENAI, "server.prompts=pixels"), "server.prompts"),
        ((*OPENAI, "server.dialect=french"), "server.dialect"),
        ((*OPENAI, "server.ready_s=0.0"), "server.ready_s"),
        (("target=intaglio_local",), "inter_chunk_ms is what a server's client sees"),
    ],
)
def test_a_wrong_field_of_the_server_is_named(overrides: tuple[str, ...], said: str) -> None:
    found = faults(*overrides)
    assert any(said in fault for fault in found), found


def test_times_between_pieces_of_a_servers_answer_are_never_called_itl(experiments_with_itl: Path) -> None:
    config = prereg.compose_arms("itl", [], folder=experiments_with_itl).baseline.config
    assert any("itl_ms cannot be measured over HTTP" in fault for fault in server_faults(config))


@pytest.fixture
def experiments_with_itl(tmp_path: Path, repository: Path) -> Path:
    import shutil

    folder = tmp_path / "experiments"
    shutil.copytree(repository / "experiments", folder)
    text = (folder / "server_calibration.yaml").read_text().replace("metric: ttft_ms", "metric: itl_ms")
    (folder / "itl.yaml").write_text(text)
    return folder


def test_commands_are_filled_without_a_shell() -> None:
    assert fill(["a", "--port", "{port}", "{{x}}"], {"port": 7}) == ["a", "--port", "7", "{x}"]
    with pytest.raises(InputError, match="placeholder"):
        fill(["{prot}"], {"port": 7})
    assert assignments(["A=b=c", "D="]) == {"A": "b=c", "D": ""}
    with pytest.raises(InputError, match="NAME=VALUE"):
        assignments(["A"])


def test_the_own_servers_command_says_the_whole_configuration() -> None:
    values = {
        "model": "tiny",
        "kv_cache.enabled": False,
        "scheduler.max_running": 3,
        "inject.step_delay_us": 9,
    }
    engine = from_flat(values)
    command = serve_command(engine)
    assert command[:4] == ["{python}", "-m", "intaglio", "serve"]
    given = [part for part in command if "=" in part]
    assert parse_overrides(given) == engine
    assert [part for part in serve_command(EngineConfig()) if "=" in part] == []


def test_addresses_of_servers() -> None:
    assert (address_of("http://h:81").port, address_of("https://h").port, address_of("https://h").tls) == (
        81,
        443,
        True,
    )
    for wrong in ("h:80", "ftp://h", "http://h/v1", "http://h:x"):
        with pytest.raises(InputError, match=r"server\.base_url"):
            address_of(wrong)


def test_only_the_named_key_reaches_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "k")
    assert "SOME_KEY" not in child_environment(ThreadsConfig(count=1))
    assert child_environment(ThreadsConfig(count=1), "SOME_KEY")["SOME_KEY"] == "k"


def test_a_server_that_ends_early_is_told_with_its_last_words(tmp_path: Path) -> None:
    code = "print('no model here'); raise SystemExit(3)"
    process = ServerProcess([sys.executable, "-c", code], os.environ, tmp_path / "log")
    with pytest.raises(ExecutionError, match="ended with code 3") as caught:
        process.announced_port(time.monotonic() + 30)
    assert "server: no model here" in caught.value.details
    process.stop(5.0)


def test_a_server_that_never_says_where_it_listens_meets_the_deadline(tmp_path: Path) -> None:
    process = ServerProcess(
        [sys.executable, "-c", "import time; time.sleep(60)"], os.environ, tmp_path / "log"
    )
    try:
        with pytest.raises(ExecutionError, match="in time"):
            process.announced_port(time.monotonic() - 1)
    finally:
        process.stop(5.0)
    assert not psutil.pid_exists(process.pid)


def test_stopping_leaves_no_process_of_a_server_that_will_not_go(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('{\"port\": 1}', child.pid, flush=True)\n"
        "print('{\"port\": 1}', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = ServerProcess([sys.executable, "-c", code], os.environ, tmp_path / "log")
    assert process.announced_port(time.monotonic() + 30) == 1
    family = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(family) == 1
    process.stop(0.2)
    assert not any(psutil.pid_exists(pid) for pid in (process.pid, *family))
