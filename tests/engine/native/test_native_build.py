"""Building and choosing: cached, repaired, shared between processes, and never a crash where something is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from intaglio.compute.native import build, status, toolchain
from intaglio.compute.native.library import Library
from intaglio.config import parse_overrides
from intaglio.engine import Engine

SCRIPT = """#!/bin/sh
for word in "$@"; do
  case "$word" in
    --version) echo "pretend 1.0"; exit 0 ;;
    -dumpmachine) echo "pretend-machine"; exit 0 ;;
  esac
done
{body}
"""


def pretend_compiler(folder: Path, body: str) -> str:
    path = folder / "pretend-c++"
    path.write_text(SCRIPT.format(body=body), encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    monkeypatch.setenv("INTAGLIO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def quick(monkeypatch):
    """Portable code alone, hardly optimised: enough where the build itself is tested."""
    units = toolchain.kernel_units("riscv64")
    monkeypatch.setattr(toolchain, "kernel_units", lambda machine=None: units)
    monkeypatch.setattr(toolchain, "COMMON", ("-O0", "-std=c++17", "-fPIC", "-pthread"))


def test_what_was_built_is_found_again_and_repaired_when_damaged(library, quick, monkeypatch, tmp_path):
    monkeypatch.setenv("INTAGLIO_CACHE", str(tmp_path))
    assert build.is_pending()
    first = build.build()
    assert not build.is_pending()
    assert (first.fresh, first.isas, first.dropped) == (True, ("portable",), ())
    again = build.build()
    assert (again.fresh, again.path) == (False, first.path)
    # Only sound files are ever kept; what damages one later is found by its hash. The name follows the content.
    first.path.write_bytes(b"damaged")
    assert build.is_pending()
    repaired = build.build()
    assert repaired.fresh
    assert Library(repaired.path).isas() == ("portable",)


def test_an_instruction_set_that_the_compiler_refuses_is_left_out(library, quick, monkeypatch, tmp_path):
    units = toolchain.kernel_units()
    bad = toolchain.Unit("kernels-odd", "kernels.cpp", ("-mno-such-instructions",), isa="odd")
    monkeypatch.setattr(toolchain, "kernel_units", lambda machine=None: (bad, *units))
    built = build.build(tmp_path)
    assert (built.isas, built.dropped) == (("portable",), ("odd",))


def test_the_key_changes_with_compiler_flags_and_sources(monkeypatch, tmp_path):
    compiler = toolchain.Compiler(("c++",), "one")
    units = toolchain.kernel_units("x86_64")
    keys = {
        build._key(compiler, units),
        build._key(toolchain.Compiler(("c++",), "two"), units),
        build._key(toolchain.Compiler(("c++", "-g"), "one"), units),
        build._key(compiler, toolchain.kernel_units("aarch64")),
    }
    (tmp_path / "kernels.cpp").write_text("// other", encoding="utf-8")
    monkeypatch.setattr(toolchain, "SOURCES", tmp_path)
    keys.add(build._key(compiler, units))
    assert len(keys) == 5


def test_without_a_compiler_the_engine_runs_on_torch_and_says_so(no_compiler, tiny_model):
    state = status.status("")
    assert not build.is_pending()  # there is nothing that could compile
    assert (state.path, state.library) == ("torch", None)
    assert "no C++ compiler" in state.reason
    assert not status.available()
    overrides = [f"model={tiny_model}", "numerics.mode=invariant", "dtype=fp32", "threads.count=1"]
    with Engine(parse_overrides(overrides)) as engine:
        (output,) = engine.generate([[1, 2, 3]])
        assert output.error is None
        assert "native" not in str(engine.effective_config()["kernel_path"])
        (event,) = [
            e for e in engine.drain_events() if e["kind"] == "fallback" and e["path"] == "kernel_path"
        ]
        assert event["wanted"] == "native"
        assert "no C++ compiler" in event["reason"]


def test_a_compiler_that_fails_is_a_reason_and_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", pretend_compiler(tmp_path, "echo 'fatal error: out of ideas' >&2; exit 1"))
    monkeypatch.setenv("INTAGLIO_CACHE", str(tmp_path / "cache"))
    state = status.status("")
    assert state.path == "torch"
    assert "out of ideas" in state.reason
    left = [p.name for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert left == ["lock"]


def test_a_compiler_that_hangs_is_stopped_at_the_deadline(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", pretend_compiler(tmp_path, "exec sleep 60"))
    with pytest.raises(build.BuildError, match="deadline"):
        build.build(tmp_path / "cache", deadline_s=0.5)


def test_what_a_hanging_compiler_started_is_ended_with_it(monkeypatch, tmp_path):
    """As g++ starts cc1plus: whoever outlives its driver holds the pipes, and would hold up their reader."""
    body = f"sleep 60 & echo $! > {tmp_path}/child; wait"
    monkeypatch.setenv("CXX", pretend_compiler(tmp_path, body))
    monkeypatch.setattr(toolchain, "kernel_units", lambda: toolchain.plain_units(())[:1])
    began = time.monotonic()
    with pytest.raises(build.BuildError):
        build.build(tmp_path / "cache", deadline_s=0.5)
    assert time.monotonic() - began < 30
    child = int((tmp_path / "child").read_text(encoding="utf-8"))
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_compiler_that_does_not_tell_its_version_or_writes_no_utf8_is_no_crash(monkeypatch, tmp_path):
    silent = tmp_path / "silent-c++"
    silent.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    silent.chmod(0o755)
    monkeypatch.setenv("INTAGLIO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(silent))
    assert "no C++ compiler" in status.status("").reason
    monkeypatch.setenv("CXX", pretend_compiler(tmp_path, "printf 'error: caf\\351\\n' >&2; exit 1"))
    assert "error: caf" in status.status("").reason


def test_a_user_without_a_home_is_a_reason(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    for name in ("INTAGLIO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert "INTAGLIO_CACHE" in status.status("").reason
    assert not build.is_pending()


def test_a_cache_that_cannot_be_written_is_a_reason(monkeypatch, tmp_path, library):
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    monkeypatch.setenv("INTAGLIO_CACHE", str(tmp_path / "file"))
    state = status.status("")
    assert state.path == "torch"
    assert "INTAGLIO_CACHE" in state.reason


def test_an_instruction_set_can_be_forced_or_switched_off(library, monkeypatch):
    monkeypatch.setenv(status.ISA_VARIABLE, "portable")
    assert status.status().path == "native-portable"
    monkeypatch.setenv(status.ISA_VARIABLE, "off")
    assert status.status().path == "torch"
    monkeypatch.setenv(status.ISA_VARIABLE, "abacus")
    assert "usable: " in status.status().reason


def test_a_failing_self_test_means_the_torch_path(library, monkeypatch):
    monkeypatch.setattr(status, "failures", lambda *_: ["linear rows"])
    state = status.status("")
    assert state.path == "torch"
    assert "linear rows" in state.reason


def test_two_processes_build_one_library(tmp_path, library):
    """A compiler that counts its links: the second process waits for the first and takes its result."""
    found = toolchain.find_compiler()
    assert found is not None
    real, count = " ".join(found.command), tmp_path / "links"
    body = f'case " $* " in *" -shared "*) echo link >> {count} ;; esac\nexec {real} "$@"'
    wrapper = pretend_compiler(tmp_path, body)
    # Portable code alone, unoptimised: what is tested is the lock.
    code = (
        "from intaglio.compute.native import build, toolchain as t\n"
        "t.COMMON = ('-O0', '-std=c++17', '-fPIC', '-pthread')\n"
        "t.kernel_units = lambda f=t.kernel_units: f('riscv64')\n"
        "print(build.build().path)"
    )
    env = {**os.environ, "CXX": wrapper, "INTAGLIO_CACHE": str(tmp_path / "cache")}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    paths = {process.communicate(timeout=120)[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0]
    assert len(paths) == 1
    assert count.read_text(encoding="utf-8").split() == ["link"]
    about = json.loads((Path(paths.pop()).parent / "about.json").read_text(encoding="utf-8"))
    assert about["isas"] == ["portable"]
