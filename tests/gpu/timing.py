"""Time on the device's own clock."""

from __future__ import annotations

from collections.abc import Callable

import torch


def seconds(work: Callable[[], object], repeats: int = 20, warm: int = 3) -> float:
    """Median seconds of one call, by events around each; a large buffer is overwritten between calls, so that no
    call finds its inputs in the cache."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(warm):
        work()
    times = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]
