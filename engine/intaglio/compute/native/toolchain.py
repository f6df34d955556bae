"""The system's C++ compiler and what is asked of it: which translation units, with which flags.

The kernels are one source compiled once per instruction set; which of them runs is decided at run time.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
COMMON = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    # A product and a sum are contracted only where the source says so, or rows could round differently.
    "-ffp-contract=off",
    "-fno-math-errno",
)
PLAIN_UNITS = ("dispatch", "pool", "pack", "sample", "decoder", "api")

_WIDE = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma")
_X86: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("avx512bf16", (*_WIDE, "-mavx512bf16")),
    ("avx512", _WIDE),
    ("avx2", ("-mavx2", "-mfma")),
    ("portable", ()),
)
_ARM: tuple[tuple[str, tuple[str, ...]], ...] = (("neon", ()), ("portable", ()))
_OTHER: tuple[tuple[str, tuple[str, ...]], ...] = (("portable", ()),)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: the words of its command, and the text that names its version and target."""

    command: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Unit:
    """One object file: its name, source and flags. `isa` is set for a unit of the kernels."""

    name: str
    source: str
    flags: tuple[str, ...]
    isa: str = ""


def find_compiler(timeout_s: float = 20.0) -> Compiler | None:
    """The compiler that CXX names, else the first of c++, g++ and clang++ that answers. None without one."""
    named = os.environ.get("CXX")
    for command in [named.split()] if named else [["c++"], ["g++"], ["clang++"]]:
        if not command or shutil.which(command[0]) is None:
            continue
        texts = []
        for flag in ("--version", "-dumpmachine"):
            try:
                answer = run([*command, flag], timeout_s)
            except (OSError, subprocess.TimeoutExpired):
                break
            if answer.returncode != 0 or not answer.stdout.strip():
                break
            texts.append(answer.stdout.strip())
        if len(texts) == 2:
            return Compiler(tuple(command), "\n".join(texts))
    return None


def run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, or end it together with all that it started.

    A compiler's driver starts the compiler proper: one that is left behind would keep the pipes open, and whoever
    reads them would wait for it. Raises OSError, TimeoutExpired.
    """
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
    )
    try:
        out, error = child.communicate(timeout=timeout_s)
    except BaseException:
        _end_group(child)
        raise
    return subprocess.CompletedProcess(command, child.returncode, out, error)


def _end_group(child: subprocess.Popen[str]) -> None:
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.communicate()


def kernel_units(machine: str | None = None) -> tuple[Unit, ...]:
    """The kernels' units for a machine (default: this one), best instruction set first."""
    name = (machine or platform.machine()).lower()
    table = _X86 if name in ("x86_64", "amd64") else _ARM if name in ("aarch64", "arm64") else _OTHER
    return tuple(
        Unit(
            name=f"kernels-{isa}",
            source="kernels.cpp",
            flags=(*flags, f"-DIG_TARGET_{isa.upper()}", f"-DIG_NS=ig_{isa}", f"-DIG_TABLE=table_{isa}"),
            isa=isa,
        )
        for isa, flags in table
    )


def plain_units(isas: tuple[str, ...]) -> tuple[Unit, ...]:
    """The units that need no special instructions, told which instruction sets are linked in."""
    have = tuple(f"-DIG_HAVE_{isa.upper()}" for isa in isas if isa != "portable")
    return tuple(Unit(name, f"{name}.cpp", have) for name in PLAIN_UNITS)
