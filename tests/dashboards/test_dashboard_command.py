"""`counterproof dashboard`: refuses what cannot work, says where it is, and leaves no process behind."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from counterproof.errors import InputError, SetupError
from counterproof_dashboard import commands
from counterproof_dashboard.selection import OF_ONE_STUDY

DEADLINE = 90


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    commands.register(parser.add_subparsers())
    return parser.parse_args(["dashboard", *argv])


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_telemetry_is_off_and_nothing_leaves_the_machine() -> None:
    argv = commands.arguments("127.0.0.1", 8501, True)
    assert "--browser.gatherUsageStats=false" in argv
    assert "--server.address=127.0.0.1" in argv
    assert "--server.headless=true" in argv
    assert "--global.developmentMode=false" in argv
    assert Path(argv[0]).is_file()
    pages = Path(argv[0]).parent / "pages"
    listed = {"pages/experiments.py", *(path for path, *_ in OF_ONE_STUDY)}
    assert {f"pages/{page.name}" for page in pages.glob("*.py")} >= listed
    assert len(listed) >= 5


def test_what_is_chosen_is_not_marked_in_the_colour_of_a_loss() -> None:
    argv = commands.arguments("127.0.0.1", 8501, True)
    for theme in ("light", "dark"):
        (colour,) = [a.split("=")[1] for a in argv if a.startswith(f"--theme.{theme}.primaryColor=")]
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        assert blue > green > red
    # A colour or base for both themes makes Streamlit show one theme only.
    assert not any(a.startswith(("--theme.primaryColor", "--theme.base=")) for a in argv)


def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} on 127.0.0.1 cannot be used") as error:
            commands.serve(parse("--port", str(port), "--store", str(tmp_path)))
    assert "--port" in error.value.details[0]


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--port", "0"], "not a TCP port"),
        (["--port", "70000"], "not a TCP port"),
        (["--store", "no/such/store"], "no store"),
    ],
)
def test_bad_input_is_refused(argv: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        commands.serve(parse(*argv))


def test_an_address_that_is_none_is_refused(tmp_path: Path, free_port: int) -> None:
    with pytest.raises((InputError, SetupError)):
        commands.serve(parse("--host", "999.1.1.1", "--port", str(free_port), "--store", str(tmp_path)))


@pytest.fixture
def served(tmp_path: Path, free_port: int) -> Iterator[subprocess.Popen[str]]:
    code = (
        "import argparse, sys\n"
        "from counterproof_dashboard import commands\n"
        "parser = argparse.ArgumentParser()\n"
        "commands.register(parser.add_subparsers())\n"
        "args = parser.parse_args(sys.argv[1:])\n"
        "sys.exit(args.func(args))\n"
    )
    argv = [
        sys.executable,
        "-c",
        code,
        "dashboard",
        "--headless",
        "--port",
        str(free_port),
        "--store",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def wait_for_url(process: subprocess.Popen[str], port: int) -> list[psutil.Process]:
    """The children of the command once it has printed its address and answers there."""
    assert process.stdout is not None
    line = process.stdout.readline()  # returns at the end of the output too, so it cannot outlast the process
    assert f"http://127.0.0.1:{port}" in line, line + process.stdout.read()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=10) as answer:
        assert answer.read() == b"ok"
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    return children


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_server_and_command_in_order(
    served: subprocess.Popen[str], free_port: int, how: int
) -> None:
    children = wait_for_url(served, free_port)
    os.kill(served.pid, how)
    assert served.wait(DEADLINE) == 0
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


@pytest.mark.slow
def test_a_killed_command_leaves_no_server_behind(served: subprocess.Popen[str], free_port: int) -> None:
    children = wait_for_url(served, free_port)
    os.kill(served.pid, signal.SIGKILL)
    served.wait(10)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", free_port), timeout=2).close()


@pytest.mark.slow
def test_a_server_that_dies_is_an_error_with_its_last_words(
    served: subprocess.Popen[str], free_port: int
) -> None:
    (child, *_) = wait_for_url(served, free_port)
    started = time.monotonic()
    child.kill()
    assert served.wait(DEADLINE) != 0
    assert time.monotonic() - started < 30
    assert served.stdout is not None
    assert "stopped by itself" in served.stdout.read()
