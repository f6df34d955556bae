"""Hardware and libraries, reduced to what may be public and what decides whether numbers compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Nothing that names a machine: no serial numbers or unique ids, no variables, no host.
_PUBLIC = (
    "python.version",
    "python.implementation",
    "os.kernel",
    "os.machine",
    "os.libc",
    "cpu.model",
    "cpu.microcode",
    "cpu.logical",
    "cpu.affinity",
    "cpu.quota",
    "cpu.governor",
    "memory.total_bytes",
    "memory.transparent_hugepages",
)
_GPU_PUBLIC = ("name", "driver_version", "power.limit")
LIBRARY = "library."
KERNEL_PATH = "kernel_path"


def public_environment(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The identity fields that may stand in the public part."""
    kept = {key: identity[key] for key in _PUBLIC if key in identity}
    gpus = {key: value for key, value in identity.items() if _gpu_field(key) in _GPU_PUBLIC}
    return kept | gpus


def kernels(paths: Iterable[str | None]) -> dict[str, str]:
    """The field that names the kernel paths of runs, whichever arm took them; empty where no run named one."""
    named = sorted({path for path in paths if path is not None})
    return {KERNEL_PATH: ", ".join(named)} if named else {}


def kernel_difference(packet: Mapping[str, Any], paths: Iterable[str | None]) -> list[str]:
    """One sentence where other kernels ran here than `packet` (provenance/environment.json) names, else none."""
    there, here = packet.get(KERNEL_PATH), kernels(paths).get(KERNEL_PATH)
    if there == here:
        return []
    if there is None:
        return [f"kernels: the packet does not say which ran there, {here} here"]
    return [f"kernels: {there} there, {here or 'none named'} here; tokens at near ties and ratios may differ"]


def libraries(identity: Mapping[str, Any]) -> dict[str, str]:
    """`{library: version}` of those that decide numbers."""
    return {k.removeprefix(LIBRARY): str(v) for k, v in identity.items() if k.startswith(LIBRARY)}


def hardware_class(identity: Mapping[str, Any]) -> str:
    """One line by which two machines count as the same class: processor, cores, machine type, accelerators."""
    cpu = f"{identity.get('cpu.model', 'unknown')}, {identity.get('cpu.logical', '?')} logical cores"
    machine = str(identity.get("os.machine", "unknown"))
    gpus = [str(v) for k, v in sorted(identity.items()) if _gpu_field(k) == "name"]
    return "; ".join([cpu, machine, *gpus])


def differences(packet: Mapping[str, str], here: Mapping[str, str], python: tuple[str, str]) -> list[str]:
    """Versions that differ between packet and this machine, one sentence each."""
    rows = {"python": python, **{name: (packet[name], here.get(name, "not installed")) for name in packet}}
    return [f"{name}: {there} there, {now} here" for name, (there, now) in rows.items() if there != now]


def _gpu_field(key: str) -> str:
    parts = key.split(".", 2)
    return parts[2] if len(parts) == 3 and parts[0] == "gpu" else ""
