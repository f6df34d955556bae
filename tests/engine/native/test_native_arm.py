"""The NEON kernels, compiled for AArch64 and run in an emulator: every kernel on its awkward sizes, row for row."""

from __future__ import annotations

import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from intaglio.compute.native import toolchain

COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
FLAGS = ("-O2", "-std=c++17", "-pthread", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Werror")


@pytest.fixture(scope="module")
def emulator() -> str:
    """A command that runs AArch64 programs; skipped with what to install where one is missing."""
    found = next((name for name in EMULATORS if shutil.which(name)), None)
    if shutil.which(COMPILER) is None or found is None:
        pytest.skip(
            f"needs {COMPILER} and {' or '.join(EMULATORS)} (Debian: g++-aarch64-linux-gnu qemu-user-static)"
        )
    return found


def call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    return "" if done.returncode == 0 else done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() in ("aarch64", "arm64"), reason="tested directly on this machine")
def test_the_neon_kernels_compile_without_a_warning_and_keep_each_row_s_bits(emulator, tmp_path):
    isas = tuple(unit.isa for unit in toolchain.kernel_units("aarch64"))
    assert isas == ("neon", "portable")
    units = (*toolchain.kernel_units("aarch64"), *toolchain.plain_units(isas))
    jobs = [(unit.name, toolchain.SOURCES / unit.source, unit.flags) for unit in units]
    jobs.append(("driver", Path(__file__).with_name("driver.cpp"), (f"-I{toolchain.SOURCES}",)))

    def compile_one(job: tuple[str, Path, tuple[str, ...]]) -> str:
        name, source, flags = job
        return call([COMPILER, *FLAGS, *flags, "-c", str(source), "-o", str(tmp_path / f"{name}.o")])

    with ThreadPoolExecutor(max_workers=2) as pool:
        assert [error for error in pool.map(compile_one, jobs) if error] == []
    program = tmp_path / "driver"
    objects = [str(tmp_path / f"{name}.o") for name, _, _ in jobs]
    assert call([COMPILER, "-static", "-pthread", *objects, "-o", str(program)]) == ""
    ran = subprocess.run([emulator, str(program)], capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.split() == list(isas)
