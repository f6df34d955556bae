"""What a result has to say about where it was measured: no names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

_FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
    "sve",
)


def facts() -> dict[str, str]:
    """Processor, usable cores, instruction sets, memory, kernel and C library."""
    found = {
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "usable cores": str(
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
        "python": platform.python_version(),
    }
    cpu = _fields(Path("/proc/cpuinfo"))
    if "model name" in cpu:
        model = [cpu[key] for key in ("cpu family", "model") if key in cpu]
        found["processor"] = f"{cpu['model name']} (family {', model '.join(model)})"
        found["instruction sets"] = ", ".join(flag for flag in _FLAGS if flag in cpu.get("flags", "").split())
    memory = _fields(Path("/proc/meminfo")).get("MemTotal", "").removesuffix(" kB").strip()
    if memory.isdigit():
        found["memory"] = f"{int(memory) / 1024 / 1024:.1f} GiB"
    return found


def code(repository: Path) -> dict[str, str]:
    """The commit measured, and whether files of the engine or of these benchmarks differ from it."""
    commit = _git(repository, "rev-parse", "HEAD")
    if not commit:
        return {"commit": "unknown"}
    changed = _git(repository, "status", "--porcelain", "--", "engine", "benchmarks/peers")
    return {"commit": commit, "changed files": str(len(changed.splitlines()))}


def _git(repository: Path, *arguments: str) -> str:
    try:
        command = ["git", "-C", str(repository), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _fields(path: Path) -> dict[str, str]:
    """The first value of every "key : value" line."""
    found: dict[str, str] = {}
    if path.is_file():
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            key, sign, value = line.partition(":")
            if sign:
                found.setdefault(key.strip(), value.strip())
    return found
