"""Count the binaries that each kernel is compiled into over many batch sizes: one, or bits could depend on the batch.

Triton specialises on integers and alignments of arguments. Launches are bound and compiled as for a device of compute
capability 9.0 but not started, so that no device is needed. Prints {kernel: binaries}.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from intaglio.compute.gpu import attention_kernels, linear_kernel, ops, row_kernels
from intaglio.compute.gpu.attend import PagedAttention, place
from intaglio.compute.gpu.layout import Span

BATCHES = (
    ((1, 0),),
    ((1, 599),),
    ((1, 15), (1, 4096)),
    ((16, 0),),
    ((33, 31), (1, 7)),
    ((64, 1000),),
)
ROW_COUNTS = (1, 2, 7, 16, 33, 64, 100)


class _NoDevice:
    """What a launch asks of the device's driver before it starts anything."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def bind_only() -> None:
    """From now on launches in this process are compiled and not started."""
    driver.set_active(_NoDevice())
    launch = JITFunction.run

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        return launch(self, *arguments, grid=grid, warmup=True, **named)

    JITFunction.run = run


def main() -> None:
    bind_only()
    bf16 = torch.bfloat16
    layer = torch.zeros(4200, 2, 3, 64, dtype=bf16)
    for uniform in (True, False):
        attention = PagedAttention(9, 3, 64, uniform, False)
        for rows in BATCHES:
            spans, start = [], 0
            for count, context in rows:
                spans.append(Span(start, count, context, range(-(-(count + context) // 16))))
                start += count
            table, sets = place(spans, 16, 3, uniform, layer.device)
            attention.run(torch.zeros(start, 9, 64, dtype=bf16), layer, table, 16, sets, None)
    weight = torch.zeros(960, 576, dtype=bf16)
    for count in ROW_COUNTS:
        x = torch.zeros(count, 576, dtype=bf16)
        ops.linear(x, weight, None, False)
        ops.linear(x[count // 2 :], weight, None, False)
        ops.rms_norm(x, torch.ones(576), 1e-5)
        ops.swiglu(torch.zeros(count, 3072, dtype=bf16))
        ops.store_rows(torch.zeros(count, 2, 3, 64, dtype=bf16), layer, torch.zeros(count, dtype=torch.int32))
    counts = {}
    for module in (attention_kernels, linear_kernel, row_kernels):
        for name, kernel in vars(module).items():
            if isinstance(kernel, JITFunction) and kernel.device_caches:
                counts[name] = sum(len(caches[0]) for caches in kernel.device_caches.values())
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
