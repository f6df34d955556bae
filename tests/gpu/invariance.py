"""Invariant mode bit for bit: rows alone, together, reordered and chunked, through the kernels and the whole engine."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import models
import numpy as np
import paged
import torch
from report import Report

from intaglio.compute.gpu.attend import PagedAttention

CASE = paged.Case(((1, 599), (5, 127), (40, 3), (1, 0), (19, 300)), 6, 2, 16)
DTYPES = ("fp32", "bf16")
# Prompt tokens and chunk sizes, on a device and in the interpreter.
TOKENS, CHUNKS = 120, (1, 7, 33, 64)
FEW_TOKENS, FEW_CHUNKS = 20, (3, 13)


def names(interpreted: bool) -> list[str]:
    """What `run` checks."""
    dtypes = DTYPES[:1] if interpreted else DTYPES
    kernel = [f"attention rows {kind} {dtype}" for dtype in dtypes for kind in ("alone", "reordered")]
    chunks = (f"chunk {chunk}" for chunk in (FEW_CHUNKS if interpreted else CHUNKS))
    model = ["kernels", *chunks, "without cache", "batched", "other blocks"]
    return [*kernel, *(f"model {name} {dtype}" for dtype in dtypes for name in model)]


def run(device: torch.device, interpreted: bool, report: Report) -> None:
    """All of `names`."""
    for dtype in DTYPES[:1] if interpreted else DTYPES:
        _rows(dtype, device, report)
        with tempfile.TemporaryDirectory() as folder:
            _model(dtype, device, Path(folder), interpreted, report)


def _rows(dtype: str, device: torch.device, report: Report) -> None:
    setup = paged.prepare(CASE, paged.DTYPES[dtype], device)
    attention = PagedAttention(CASE.heads, CASE.kv_heads, CASE.dim, True, False)
    together = setup.attend(attention)
    alone = [setup.attend(attention, [row])[0] for row in range(len(CASE.rows))]
    order = [3, 0, 4, 2, 1]
    reordered = dict(zip(order, setup.attend(attention, order), strict=True))
    for kind, others in (("alone", alone), ("reordered", [reordered[row] for row in range(len(order))])):
        pairs = itertools.chain.from_iterable(
            zip(a, b, strict=True) for a, b in zip(together, others, strict=True)
        )
        equal = [torch.equal(a, b) for a, b in pairs]
        report.check(f"attention rows {kind} {dtype}", all(equal), compared=len(equal))


def _model(dtype: str, device: torch.device, folder: Path, interpreted: bool, report: Report) -> None:
    """Logits of one prompt through a worker, computed in every way that must not matter."""
    driver = models.driver(models.write(folder, interpreted), device, dtype, "invariant")
    report.check(f"model kernels {dtype}", "triton" in models.path(driver), path=models.path(driver))
    length, chunks = (FEW_TOKENS, FEW_CHUNKS) if interpreted else (TOKENS, CHUNKS)
    tokens = [(7 * i + 3) % models.vocabulary(interpreted) for i in range(length)]
    whole = driver.cached_logits(tokens, [length], range(8))
    for chunk in chunks:
        parts = models.split(length, chunk)
        before = driver.tokens
        chunked = driver.cached_logits(tokens, parts, range(8, 16))
        passed = np.array_equal(chunked, whole) and driver.tokens - before == length
        report.check(f"model chunk {chunk} {dtype}", passed, steps=len(parts))
    report.check(f"model without cache {dtype}", np.array_equal(driver.uncached_logits(tokens), whole))
    rows = [driver.row("a", tokens[:9], 0, (20, 17)), driver.row("b", tokens, 0, range(24, 32))]
    batched = {row.request_id: row.logits for row in driver.execute(rows, cache=True)}
    report.check(
        f"model batched {dtype}",
        np.array_equal(batched["b"], whole) and np.array_equal(batched["a"], whole[:9]),
    )
    scattered = driver.cached_logits(tokens, [length], (45, 3, 38, 9, 50, 33, 60, 12))
    report.check(f"model other blocks {dtype}", np.array_equal(scattered, whole))
