"""How far each kernel is from what this device was measured to copy and to multiply."""

from __future__ import annotations

from dataclasses import dataclass

import paged
import timing
import torch
import torch.nn.functional as F
from report import Report

from intaglio.compute.gpu import ops
from intaglio.compute.gpu.attend import PagedAttention, place
from intaglio.compute.gpu.layout import Span

HEADS, KV_HEADS, DIM = 32, 8, 128
HIDDEN, WIDE = 4096, 14336
DECODES = ((1, 1024), (1, 32768), (16, 4096), (64, 2048))
PREFILLS = ((2048, 0), (512, 7680))
ROW_COUNTS = (1, 16, 256, 4096)


@dataclass(frozen=True)
class Roof:
    """Measured bytes and floating-point operations per second."""

    copy: float
    product: float


def names(interpreted: bool) -> list[str]:
    """What `run` measures."""
    modes = ("fast", "invariant")
    return [
        "copy",
        "product",
        *(f"decode {mode} {n} rows of {length}" for mode in modes for n, length in DECODES),
        *(f"prefill {mode} {n}@{context}" for mode in modes for n, context in PREFILLS),
        *(f"linear {mode} {n} rows" for mode in modes for n in ROW_COUNTS),
        "store",
        "rms_norm",
        "swiglu",
    ]


def run(device: torch.device, interpreted: bool, report: Report) -> None:
    """All of `names`, in bf16."""
    roof = _roof(device, report)
    for mode in ("fast", "invariant"):
        attention = PagedAttention(HEADS, KV_HEADS, DIM, mode == "invariant", False)
        for rows, length in DECODES:
            nbytes = rows * length * 2 * KV_HEADS * DIM * 2
            seconds = _attention(attention, [(1, length - 1)] * rows, device)
            _bytes(f"decode {mode} {rows} rows of {length}", seconds, nbytes, roof, report)
        for count, context in PREFILLS:
            pairs = count * context + count * (count + 1) // 2
            seconds = _attention(attention, [(count, context)], device)
            _flops(f"prefill {mode} {count}@{context}", seconds, 4 * pairs * HEADS * DIM, roof, report)
        for rows in ROW_COUNTS:
            _linear(mode, rows, device, roof, report)
    _row_kernels(device, roof, report)


def _roof(device: torch.device, report: Report) -> Roof:
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / timing.seconds(lambda: target.copy_(source))
    left, right = (torch.randn(8192, 8192, dtype=torch.bfloat16, device=device) for _ in range(2))
    product = 2 * 8192**3 / timing.seconds(lambda: left @ right)
    report.figure("copy", copied / 1e9, "GB/s", bytes=2 * source.nbytes)
    report.figure("product", product / 1e12, "TFLOP/s", shape=[8192] * 3)
    return Roof(copied, product)


def _bytes(name: str, seconds: float, nbytes: int, roof: Roof, report: Report) -> None:
    rate = nbytes / seconds
    report.figure(name, rate / 1e9, "GB/s", seconds=seconds, of_copy=rate / roof.copy)


def _flops(name: str, seconds: float, flops: int, roof: Roof, report: Report) -> None:
    rate = flops / seconds
    report.figure(name, rate / 1e12, "TFLOP/s", seconds=seconds, of_product=rate / roof.product)


def _attention(attention: PagedAttention, rows: list[tuple[int, int]], device: torch.device) -> float:
    case = paged.Case(tuple(rows), HEADS, KV_HEADS, DIM)
    setup = paged.prepare(case, torch.bfloat16, device)
    spans, start = [], 0
    for (count, context), blocks in zip(rows, setup.blocks, strict=True):
        spans.append(Span(start, count, context, blocks))
        start += count
    table, sets = place(spans, case.block_tokens, attention.groups, attention.uniform, device)
    queries = torch.cat(setup.queries)
    return timing.seconds(
        lambda: attention.run(queries, setup.store, table, case.block_tokens, sets, None), repeats=10
    )


def _linear(mode: str, rows: int, device: torch.device, roof: Roof, report: Report) -> None:
    x = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, device=device)
    weight = torch.randn(WIDE, HIDDEN, dtype=torch.bfloat16, device=device)
    work = (
        (lambda: ops.linear(x, weight, None, False)) if mode == "invariant" else (lambda: F.linear(x, weight))
    )
    seconds = timing.seconds(work)
    name = f"linear {mode} {rows} rows"
    if rows <= 16:  # the weights' bytes are the bound
        _bytes(name, seconds, weight.nbytes, roof, report)
    else:
        _flops(name, seconds, 2 * rows * HIDDEN * WIDE, roof, report)


def _row_kernels(device: torch.device, roof: Roof, report: Report) -> None:
    tokens = 8192
    x = torch.randn(tokens, HIDDEN, dtype=torch.bfloat16, device=device)
    gain = torch.ones(HIDDEN, device=device)
    gate_up = torch.randn(tokens, 2 * WIDE, dtype=torch.bfloat16, device=device)
    fresh = torch.randn(tokens, 2, KV_HEADS, DIM, dtype=torch.bfloat16, device=device)
    layer = torch.empty_like(fresh)
    slots = torch.randperm(tokens, device=device).to(torch.int32)
    _bytes(
        "store", timing.seconds(lambda: ops.store_rows(fresh, layer, slots)), 2 * fresh.nbytes, roof, report
    )
    _bytes("rms_norm", timing.seconds(lambda: ops.rms_norm(x, gain, 1e-5)), 2 * x.nbytes, roof, report)
    _bytes("swiglu", timing.seconds(lambda: ops.swiglu(gate_up)), gate_up.nbytes * 3 // 2, roof, report)
