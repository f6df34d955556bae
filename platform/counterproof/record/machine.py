"""What the machine is (identity) and what it was doing (observation), read from the kernel without torch."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil

from counterproof.record import canonical

# Variables that can change what or how fast the engine computes. Values are hashed: they may hold paths.
VARIABLES = re.compile(
    r"(CUDA_|NCCL_|OMP_|MKL_|OPENBLAS_|KMP_|GOMP_|TORCH|PYTORCH_|HF_|TOKENIZERS_PARALLELISM|LD_(PRELOAD|LIBRARY_PATH)"
    r"|MALLOC_|PYTHONHASHSEED|INTAGLIO_(?!MODELS))"
)
_GPU_FIELDS = ("uuid", "name", "driver_version", "power.limit", "mig.mode.current", "ecc.mode.current")
_GPU_OBSERVED = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_throttle_reasons.active")


def identity() -> dict[str, Any]:
    """Fields that must be equal for two runs to be comparable."""
    info = _cpu_info()
    libc = platform.libc_ver()
    return {
        "python.version": platform.python_version(),
        "python.implementation": platform.python_implementation(),
        "os.kernel": f"{platform.system()} {platform.release()}",
        "os.machine": platform.machine(),
        "os.libc": "-".join(libc),
        "cpu.model": info.get("model name", platform.processor() or "unknown"),
        "cpu.microcode": info.get("microcode", "unknown"),
        "cpu.flags_sha256": canonical.sha256_bytes(
            " ".join(sorted(info.get("flags", info.get("Features", "")).split())).encode()
        ),
        "cpu.logical": os.cpu_count() or 0,
        "cpu.affinity": ",".join(str(core) for core in sorted(os.sched_getaffinity(0))),
        "cpu.quota": _first("/sys/fs/cgroup/cpu.max") or "none",
        "cpu.governor": _first("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "none",
        "memory.total_bytes": psutil.virtual_memory().total,
        "memory.transparent_hugepages": _first("/sys/kernel/mm/transparent_hugepage/enabled") or "none",
        "env.sha256": canonical.sha256_json(variables()),
        "env.names": ",".join(sorted(variables())),
    }


def observation() -> dict[str, Any]:
    """Fields that are worth knowing but differ from run to run. None: this machine does not tell."""
    memory = psutil.virtual_memory()
    busy = [p.info for p in psutil.process_iter(["pid", "cpu_times"]) if p.info["pid"] != os.getpid()]
    return {
        "load1": os.getloadavg()[0],
        "cpu_mhz": cpu_mhz(),
        "cpu_temperature_c": _temperature(),
        "memory_available_bytes": memory.available,
        "swap_used_bytes": psutil.swap_memory().used,
        "other_processes": len(busy),
    }


def cpu_mhz() -> float | None:
    """Mean current clock of all cores, None where the kernel does not tell."""
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError):
        return None
    return float(frequency.current) if frequency and frequency.current else None


def variables() -> dict[str, str]:
    """The environment variables that belong to the identity, by name."""
    return {name: value for name, value in sorted(os.environ.items()) if VARIABLES.match(name)}


def gpu_identity() -> dict[str, Any]:
    """Identity of every visible NVIDIA device, {} without the driver's tool."""
    return _query_gpus(_GPU_FIELDS)


def gpu_observation() -> dict[str, Any]:
    """Clocks, temperature, power and throttle reasons of every NVIDIA device now."""
    return _query_gpus(_GPU_OBSERVED)


def gpu_used_bytes() -> int | None:
    """Memory in use on all NVIDIA devices, whoever uses it (contexts and other processes too); None without one."""
    used = _query_gpus(("memory.used",)).values()
    if not used or not all(value.isdigit() for value in used):
        return None
    return sum(int(value) << 20 for value in used)  # the tool tells MiB


def _query_gpus(fields: tuple[str, ...]) -> dict[str, Any]:
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20.0, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if done.returncode != 0:
        return {}
    result: dict[str, Any] = {}
    for number, line in enumerate(done.stdout.strip().splitlines()):
        for field, value in zip(fields, line.split(", "), strict=False):
            result[f"gpu.{number}.{field}"] = value.strip()
    return result


def _cpu_info() -> dict[str, str]:
    """The first processor's section of /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, sign, value in pairs if sign}


def _first(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _temperature() -> float | None:
    try:
        sensors = psutil.sensors_temperatures()
    except (OSError, AttributeError):
        return None
    values = [entry.current for entries in sensors.values() for entry in entries if entry.current]
    return max(values) if values else None
