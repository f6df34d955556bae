"""Every kernel under AddressSanitizer and UBSan, on every instruction set, in a program of its own."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from intaglio.compute.native import toolchain

FLAGS = ("-O1", "-g", "-std=c++17", "-pthread", "-ffp-contract=off", "-w", "-fsanitize=address,undefined")
STRICT = ("-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return "" if done.returncode == 0 else done.stderr[-2000:]


@pytest.mark.slow
def test_no_kernel_leaves_its_buffers_or_overflows(library, tmp_path):
    compiler = toolchain.find_compiler()
    assert compiler is not None
    (tmp_path / "empty.cpp").write_text("int main() { return 0; }", encoding="utf-8")
    base = [*compiler.command, *FLAGS, *STRICT]
    problem = call([*base, str(tmp_path / "empty.cpp"), "-o", str(tmp_path / "empty")])
    if problem or call([str(tmp_path / "empty")]):
        pytest.skip(f"this compiler has no sanitizers: {problem[:200]}")
    isas = tuple(unit.isa for unit in toolchain.kernel_units())
    units = (*toolchain.kernel_units(), *toolchain.plain_units(isas))
    driver = Path(__file__).with_name("driver.cpp")
    jobs = [(unit.name, toolchain.SOURCES / unit.source, unit.flags) for unit in units]
    jobs.append(("driver", driver, (f"-I{toolchain.SOURCES}",)))

    def compile_one(job: tuple[str, Path, tuple[str, ...]]) -> str:
        name, source, flags = job
        return call([*base, *flags, "-c", str(source), "-o", str(tmp_path / f"{name}.o")])

    with ThreadPoolExecutor(max_workers=2) as pool:
        assert [error for error in pool.map(compile_one, jobs) if error] == []
    objects = [str(tmp_path / f"{name}.o") for name, _, _ in jobs]
    assert call([*base, *objects, "-o", str(tmp_path / "driver")]) == ""
    ran = subprocess.run([str(tmp_path / "driver")], capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.split() == list(library.isas())
