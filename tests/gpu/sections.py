"""The sections of the run on a device, in order. A figure is only taken on a device; a check may be interpreted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """`module` has names(interpreted) and run(device, interpreted, report)."""

    module: str
    what: str
    deadline_s: int
    device_only: bool = False


SECTIONS = (
    Section("correctness", "every kernel against float64, beside torch in the same dtype", 130),
    Section("invariance", "invariant mode bit for bit over batch, chunk, cache and blocks", 110),
    Section("tokens", "the whole engine: tokens as the CPU's torch path in fp32, caches on and off", 110),
    Section("roofline", "GB/s and TFLOP/s of each kernel against a measured copy and product", 80, True),
    Section("swapping", "block moves through pinned memory on a stream of their own", 50, True),
    Section("decode", "time per token of a decode step without graphs, in both modes", 90, True),
)
