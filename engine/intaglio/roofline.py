"""The two roofs of a device: how fast it reads memory, and how fast it multiplies matrices.

Every rate is the best of several tries, since a roof is what is possible and not what is usual. On a CPU memory is
read by reductions (which of them is fastest differs by processor); on a GPU by a copy, whose bytes count twice.
Products have the shape of a transformer's linears, 1,024 x 1,536 by 1,536 x 1,536 on a CPU and 8,192 squared on a GPU.
Source of the model: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_CPU_BYTES = 512 << 20
_GPU_BYTES = 2 << 30
_TRIES = 8
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Roofline:
    """`memory_bytes_s`: bytes read a second. `flops_s`: floating-point operations a second by dtype."""

    device: str
    threads: int
    memory_bytes_s: float
    flops_s: dict[str, float]

    def as_dict(self) -> dict[str, str | int | float | dict[str, float]]:
        """Plain values, as they are recorded."""
        return {
            "device": self.device,
            "threads": self.threads,
            "memory_bytes_s": self.memory_bytes_s,
            "flops_s": dict(self.flops_s),
        }


def measure(
    device: str = "cpu", tell: Callable[[str], None] = lambda _what: None, *, memory_bytes: int | None = None
) -> Roofline:
    """Measure `device` with torch's present threads. About 3 s on two cores. Raises RuntimeError without the device.

    tell          called with what is measured next
    memory_bytes  size of the array that is read (default 512 MiB on a CPU, 2 GiB on a GPU)
    """
    place = torch.device(device)
    tell("memory")
    rate = _memory_rate(place, memory_bytes or (_CPU_BYTES if place.type == "cpu" else _GPU_BYTES))
    flops = {}
    for name, dtype in _DTYPES.items():
        tell(f"matrix products in {name}")
        flops[name] = _product_rate(place, dtype)
    return Roofline(device, torch.get_num_threads(), rate, flops)


def _memory_rate(place: torch.device, size: int) -> float:
    memory = torch.ones(size // 4, device=place)
    if place.type != "cpu":
        target = torch.empty_like(memory)
        return 2 * size / _best(place, lambda: target.copy_(memory))
    low, high = memory.chunk(2)
    works: tuple[Callable[[], object], ...] = (memory.amax, memory.sum, lambda: torch.dot(low, high))
    return size / min(_best(place, work) for work in works)


def _product_rate(place: torch.device, dtype: torch.dtype) -> float:
    rows, inner, columns = (1024, 1536, 1536) if place.type == "cpu" else (8192, 8192, 8192)
    left = torch.randn(rows, inner, device=place).to(dtype)
    right = torch.randn(inner, columns, device=place).to(dtype)
    return 2 * rows * inner * columns / _best(place, lambda: left @ right)


def _best(place: torch.device, work: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls, after one that does not count."""
    work()
    seconds = []
    for _ in range(_TRIES):
        _finish(place)
        began = time.perf_counter()
        work()
        _finish(place)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _finish(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)
