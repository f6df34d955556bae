"""Replay: from the file alone, without a network, under opaque names, and compared only afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from counterproof.cli import main
from counterproof.errors import InputError
from counterproof.run.child_env import child_environment
from counterproof_review.packet import extract, manifest, offline
from counterproof_review.packet.build import Built, build
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive
from counterproof_review.packet.replay import Options, read_nonce, replay
from intaglio.config import ThreadsConfig

ARMS = ("baseline", "candidate", "again", "slowed")
DEADLINE = 280
GUARD = "from counterproof_review.packet.guard import install; install()\n"


def quiet(_: object) -> None:
    """Nobody is told."""


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> offline.Surroundings:
    folder = tmp_path_factory.mktemp("around")
    return offline.prepare(folder, folder / "models")


# -- the network --------------------------------------------------------------------------------------------


def run(code: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
    return done.stdout.strip() or done.stderr.strip()[-300:]


@pytest.mark.parametrize(
    "attempt",
    [
        "socket.create_connection(('192.0.2.1', 80), timeout=2)",
        "socket.socket().connect(('192.0.2.1', 80))",
        "socket.socket().connect_ex(('192.0.2.1', 80))",
        "socket.socket(socket.AF_INET6).connect(('2001:db8::1', 80))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "socket.getaddrinfo('example.org', 80)",
        "socket.gethostbyname('example.org')",
        "__import__('_socket').socket().connect(('192.0.2.1', 80))",
        "__import__('urllib.request').request.urlopen('http://192.0.2.1/', timeout=2)",
    ],
)
def test_the_guard_refuses_every_way_out(attempt: str) -> None:
    code = f"{GUARD}import socket\ntry:\n    {attempt}\n    print('open')\nexcept Exception as e:\n    print(repr(e))"
    assert "NetworkRefused" in run(code)


def test_the_guard_leaves_this_machine_open() -> None:
    code = (
        f"{GUARD}import socket\n"
        "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname(), timeout=5)\n"
        "a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1), socket.getaddrinfo('localhost', 80)[0][1] > 0)"
    )
    assert run(code) == "b'x' True"


def test_without_the_guard_nothing_is_refused_by_it() -> None:
    """The inverse: the refusals above come from the guard."""
    code = "import socket\ntry:\n    socket.getaddrinfo('127.0.0.2', 80); socket.getaddrinfo('192.0.2.1', 80); print('resolved')\nexcept Exception as e:\n    print(repr(e))"
    assert run(code) == "resolved"


def test_children_of_a_replay_are_guarded_down_to_the_measured_process(around: offline.Surroundings) -> None:
    assert offline.probe(around) == "NetworkRefusedError"
    code = "import socket, sys\ntry:\n    socket.getaddrinfo('192.0.2.1', 80); print('open')\nexcept Exception as e:\n    print(type(e).__name__)"
    outer = (
        "import subprocess, sys; from counterproof.run.child_env import child_environment; from intaglio.config import ThreadsConfig;"
        f"print(subprocess.run([sys.executable, '-P', '-c', {code!r}], env=child_environment(ThreadsConfig()), capture_output=True, text=True, timeout=30).stdout)"
    )
    assert run(outer, dict(around.environment)) == "NetworkRefusedError"


@pytest.mark.skipif(not offline.namespace_prefix(), reason="this machine grants no network namespace")
def test_the_namespace_holds_native_code_too(around: offline.Surroundings) -> None:
    """With the guard out of the way, the kernel itself has no way out."""
    code = "import socket\ntry:\n    socket.create_connection(('192.0.2.1', 9), timeout=5)\n    print('open')\nexcept OSError as e:\n    print(e.errno)"
    done = subprocess.run(
        [*around.namespace, sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60
    )
    import errno

    assert done.stdout.strip() == str(errno.ENETUNREACH)


def test_the_environment_is_short_and_its_home_is_empty(
    around: offline.Surroundings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    environment = offline.prepare(tmp_path, tmp_path / "models").environment
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY"} & set(environment)
    assert list(Path(environment["HOME"]).iterdir()) == []
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert all(
        str(tmp_path) in environment[name] for name in ("HOME", "TMPDIR", "HF_HOME", "COUNTERPROOF_STORE")
    )
    assert set(child_environment(ThreadsConfig())) - set(os.environ) <= {
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "PYTHONHASHSEED",
        "PYTHONUNBUFFERED",
        "TOKENIZERS_PARALLELISM",
        "HF_HUB_DISABLE_TELEMETRY",
        "DO_NOT_TRACK",
    }


# -- the folder ---------------------------------------------------------------------------------------------


def test_only_an_empty_folder_is_used(tmp_path: Path) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "x").write_text("mine")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    for place in (used, used / "x", link):
        with pytest.raises(PacketError, match="E_DESTINATION"):
            extract.empty_folder(place)
    assert (used / "x").read_text() == "mine"
    assert extract.empty_folder(tmp_path / "new" / "deep").is_dir()


def test_the_public_part_is_written_without_results_and_for_its_owner_alone(
    built: Built, tmp_path: Path
) -> None:
    with Archive.open(built.path) as archive:
        entries = manifest.read(archive)
        extract.public_part(archive, entries, tmp_path / "out")
    written = {
        p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()
    }
    assert written == {path for path in entries if not path.startswith("results/")}
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "out").rglob("*") if p.is_file()} == {0o600}


def test_a_tampered_packet_starts_no_replay(members: Any, tmp_path: Path) -> None:
    path = next(p for p in members.files if p.startswith("replay/inputs/block"))
    members.files[path] = members.files[path].replace(b"0", b"1", 1)
    packet = members.pack(honest_manifest=False)
    with Archive.open(packet) as archive, pytest.raises(PacketError, match="E_HASH"):
        replay(archive, Options(tmp_path / "out"), quiet, quiet)
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_here_is_named_and_nothing_is_left(built: Built, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with Archive.open(built.path) as archive, pytest.raises(PacketError, match="E_MODEL_MISSING"):
        replay(archive, Options(tmp_path / "out", models=(tmp_path / "models",)), quiet, quiet)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("blocks", [0, -1, 7])
def test_blocks_beyond_the_packet(built: Built, tmp_path: Path, blocks: int) -> None:
    with Archive.open(built.path) as archive, pytest.raises(InputError, match="between 1 and 6"):
        replay(archive, Options(tmp_path / "out", blocks=blocks), quiet, quiet)


def test_a_nonce_is_64_hex_digits() -> None:
    assert read_nonce("ab" * 32) == b"\xab" * 32
    for text in ("", "ab", "zz" * 32, "ab" * 33):
        with pytest.raises(InputError):
            read_nonce(text)


def test_a_model_that_the_engine_refuses_is_an_error_with_its_log(
    built: Built, fake_model: Path, tmp_path: Path
) -> None:
    """The fake model has the right hashes and is no model: the run fails, is told, and leaves no process."""
    told: list[dict[str, Any]] = []
    options = Options(tmp_path / "out", blocks=1, models=(fake_model,))
    with Archive.open(built.path) as archive, pytest.raises(Exception) as caught:
        replay(archive, options, quiet, told.append)
    assert getattr(caught.value, "exit_code", None) in (3, 4)
    assert told[0]["kind"] == "run"
    assert not (tmp_path / "out" / "replay.json").exists()


# -- the whole way ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replayed(
    support: ModuleType, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A packet on the tiny model, replayed by the command alone, from an empty folder, home and store."""
    base = tmp_path_factory.mktemp("whole")
    study = support.build(base / "store", tiny_model, prompt_tokens=8, new_tokens=4)
    packet = build(study, out=base / "claim.rep.zip").path
    models = base / "found"
    models.mkdir()
    for number, path in enumerate(sorted(tiny_model.iterdir())):
        (models / f"blob-{number}").write_bytes(path.read_bytes())
    (base / "home").mkdir()
    (base / "cwd").mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("INTAGLIO_", "COUNTERPROOF_"))}
    env |= {
        "HOME": str(base / "home"),
        "COUNTERPROOF_STORE": str(base / "other-store"),
        "COUNTERPROOF_MACHINE_LOCK": str(base / "lock"),
    }
    argv = [sys.executable, "-m", "counterproof", "packet", "replay", str(packet), "--dir", str(base / "out")]
    argv += ["--blocks", "1", "--models", str(models), "--nonce", "ab" * 32, "--keep"]
    done = subprocess.run(argv, env=env, cwd=base / "cwd", capture_output=True, text=True, timeout=DEADLINE)
    return base, done


@pytest.mark.slow
def test_a_packet_replays_from_the_file_and_the_model_by_hash(replayed: Any) -> None:
    base, done = replayed
    assert done.returncode == 0, done.stderr
    record = json.loads((base / "out" / "replay.json").read_text())
    assert record["verdict"] == "INCONCLUSIVE"
    assert record["reason"].startswith("1 block here") and "at least 6" in record["reason"]
    assert "INCONCLUSIVE" in done.stdout
    assert record["network"]["probe"] == "NetworkRefusedError"
    assert record["blocks"] == 1
    assert len(record["pairs"]) == 6
    assert all(pair["n"] == 1 for pair in record["pairs"])
    assert (base / "out" / "replay.md").read_text() in done.stdout
    assert list((base / "home").iterdir()) == []
    assert list((base / "cwd").iterdir()) == []
    assert not (base / "other-store").exists()


@pytest.mark.slow
def test_work_was_done_by_the_engine_and_equal_arms_agree(replayed: Any) -> None:
    base, _ = replayed
    estimates = json.loads((base / "out" / "estimates.json").read_text())
    record = json.loads((base / "out" / "replay.json").read_text())
    runs = {run["arm"]: run for run in estimates["runs"]}
    by_role = {role: runs[name] for role, name in record["opened"].items()}
    # 12 requests of 8 + 4 tokens: with the cache 8 + 3 tokens each, without 8 + 9 + 10 + 11.
    assert by_role["candidate"]["tokens_computed"] == 12 * 11
    assert by_role["baseline"]["tokens_computed"] == 12 * 38
    assert by_role["baseline"]["outputs_sha256"] == by_role["again"]["outputs_sha256"]
    assert all(run["value"] > 0 and run["failed_requests"] == 0 for run in estimates["runs"])
    assert estimates["failed"] == []


@pytest.mark.slow
def test_the_measuring_side_knew_no_arm_and_the_order_followed_the_nonce(replayed: Any) -> None:
    from counterproof_review.packet import schedule

    base, _ = replayed
    record = json.loads((base / "out" / "replay.json").read_text())
    task = (base / "out" / "task.json").read_text()
    estimates = (base / "out" / "estimates.json").read_text()
    for text in (task, estimates):
        assert not any(f'"{arm}"' in text for arm in ARMS)
    assert not (base / "out" / "packet" / "results").exists()
    wanted = schedule.runs(record["root"], bytes.fromhex("ab" * 32), 1, record["per_block"])
    assert [(r["block"], r["arm"]) for r in json.loads(estimates)["runs"]] == wanted
    from counterproof.record.canonical import sha256_file

    assert record["estimates_sha256"] == sha256_file(base / "out" / "estimates.json")


@pytest.mark.slow
def test_other_surroundings_are_listed_and_forbid_absolute_numbers(replayed: Any) -> None:
    base, done = replayed
    record = json.loads((base / "out" / "replay.json").read_text())
    assert any(line.startswith("hardware: Synthetic CPU") for line in record["differences"])
    ran = {run["kernel_path"] for run in json.loads((base / "out" / "estimates.json").read_text())["runs"]}
    (here,) = ran
    assert (
        f"kernels: torch_sdpa there, {here} here; tokens at near ties and ratios may differ"
        in record["differences"]
    )
    assert f"kernels: torch_sdpa there, {here} here" in done.stdout
    assert record["absolute_numbers_comparable"] is False
    assert "Absolute numbers are not compared" in done.stdout


@pytest.mark.slow
def test_no_process_is_left_when_a_replay_is_killed(
    support: ModuleType, tiny_model: Path, tmp_path: Path
) -> None:
    study = support.build(tmp_path / "store", tiny_model, prompt_tokens=8, new_tokens=4)
    packet = build(study, out=tmp_path / "claim.rep.zip").path
    argv = [
        sys.executable,
        "-m",
        "counterproof",
        "packet",
        "replay",
        str(packet),
        "--models",
        str(tiny_model),
    ]
    env = {**os.environ, "COUNTERPROOF_MACHINE_LOCK": str(tmp_path / "lock")}
    process = subprocess.Popen(
        [*argv, "--dir", str(tmp_path / "out")], env=env, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("[1/"):
                break
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.kill()
        process.wait(30)
        _, alive = psutil.wait_procs(children, timeout=60)
        assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        process.kill()
        process.wait(30)
        process.stderr.close()  # type: ignore[union-attr]


# -- the command line ---------------------------------------------------------------------------------------


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`counterproof packet ...` in this process: exit code, standard output, standard error."""

    def call(*argv: str) -> tuple[int, str, str]:
        try:
            code = main(["packet", *argv])
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_verify_and_show_on_the_command_line(
    built: Built, members: Any, tmp_path: Path, command: Any
) -> None:
    code, out, _ = command("verify", str(built.path))
    assert code == 0
    assert built.root in out
    assert "leaks" in out
    code, out, err = command("show", str(built.path), "protocol/prereg.json")
    assert json.loads(out)["unit"] == "block"
    assert "not blind" not in err
    code, out, err = command("show", str(built.path), "results/results.json")
    assert json.loads(out)["rows"] == 288
    assert "not blind" in err
    members.files["protocol/prereg.json"] = b"{}\n"
    code, out, err = command("verify", str(members.pack(honest_manifest=False)))
    assert code == 5
    assert "E_HASH protocol/prereg.json" in err
    assert "failed" in out
    assert "Traceback" not in err
    assert command("verify", str(tmp_path / "absent"))[0] == 2
    assert command("show", str(built.path), "protocol/absent.json")[0] == 5
    assert command("replay", str(built.path), "--nonce", "xyz", "--dir", str(tmp_path / "out"))[0] == 2


def test_help_has_examples(command: Any) -> None:
    for action in ((), ("build",), ("verify",), ("show",), ("replay",)):
        code, out, _ = command(*action, "--help")
        assert code == 0
        assert "examples:" in out
        assert "counterproof packet" in out
