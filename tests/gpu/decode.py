"""Time per token of decode steps, launched one by one (no graphs), on a random model of SmolLM2-135M's size."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import models
import torch
from report import Report

CONTEXT, STEPS, WARM = 512, 40, 8
BATCHES = (1, 16, 64)
MODES = ("fast", "invariant")


def names(interpreted: bool) -> list[str]:
    """What `run` measures."""
    return [f"decode {mode} {batch} rows" for mode in MODES for batch in BATCHES]


def run(device: torch.device, interpreted: bool, report: Report) -> None:
    """All of `names`, in bf16, through the worker: layout, layers, head, greedy choice."""
    with tempfile.TemporaryDirectory() as name:
        folder = models.write(Path(name), False, "llama", **models.SMOLLM2_SIZES)
        for mode in MODES:
            per_row = -(-(CONTEXT + STEPS + WARM) // 16)
            driver = models.driver(folder, device, "bf16", mode, blocks=per_row * max(BATCHES))
            for batch in BATCHES:
                tables = [range(n * per_row, (n + 1) * per_row) for n in range(batch)]
                _measure(driver, mode, tables, report)
            driver.worker.close()


def _measure(driver: Any, mode: str, tables: list[range], report: Report) -> None:
    sample = models.support("worker_driver").SampleSpec(position=1)
    last = {}
    for number, table in enumerate(tables):
        prompt = [(31 * i + number) % 49152 for i in range(CONTEXT)]
        row = driver.row(
            f"{number:03d}", prompt, 0, table, sample=sample, logit_rows=[CONTEXT - 1], want_logits=False
        )
        (result,) = driver.execute([row], cache=True)
        last[row.request_id] = result.tokens[0]
    times = []
    for step in range(WARM + STEPS):
        rows = [
            driver.row(
                name,
                [last[name]],
                CONTEXT + step,
                tables[int(name)],
                sample=sample,
                logit_rows=[0],
                want_logits=False,
            )
            for name in last
        ]
        began = time.perf_counter()
        for result in driver.execute(rows, cache=True):
            last[result.request_id] = result.tokens[0]
        times.append(time.perf_counter() - began)
    median = sorted(times[WARM:])[STEPS // 2]
    path = models.path(driver)
    report.figure(f"decode {mode} {len(tables)} rows", median * 1e3, "ms a token", path=path, context=CONTEXT)
