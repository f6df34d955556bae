"""The whole engine on these kernels: tokens as the CPU's torch path in fp32, bits that no cache or companion moves."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import numpy as np
import torch
from report import Report

TOKENIZER = Path(__file__).resolve().parents[2] / "data" / "models" / "tiny"
PROMPTS = ([5, 9, 40, 33, 7, 2, 90, 11, 60, 3, 21, 8, 19, 44, 70, 71, 72, 13, 4], [17, 3, 3, 250, 8])


def names(interpreted: bool) -> list[str]:
    """What `run` checks."""
    modes = [f"tokens {mode} fp32" for mode in ("fast", "invariant")]
    dtypes = ("fp32",) if interpreted else ("fp32", "bf16")
    shared = [f"{name} {dtype}" for dtype in dtypes for name in ("prefix hit", "batched with a prefix hit")]
    return [*modes, *shared, *([] if interpreted else ["swapped and back bf16"])]


def run(device: torch.device, interpreted: bool, report: Report) -> None:
    """All of `names`."""
    with tempfile.TemporaryDirectory() as name:
        folder = models.write(
            Path(name), interpreted, "llama", vocab_size=512, bos_token_id=0, eos_token_id=1
        )
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TOKENIZER / file, folder / file)
        new = 6 if interpreted else 40
        with _torch_on_cpu(), _engine(folder, torch.device("cpu"), "fp32", "fast") as engine:
            want = _tokens(engine, new)
            reference = str(engine.effective_config()["kernel_path"])
        with _engine(folder, device, "fp32", "fast") as engine:
            _compare(engine, "fast", new, want, reference, report)
        with _engine(folder, device, "fp32", "invariant", "prefix_cache.enabled=true") as engine:
            _compare(engine, "invariant", new, want, reference, report)
            _prefix(engine, "fp32", report)
        if not interpreted:
            with _engine(folder, device, "bf16", "invariant", "prefix_cache.enabled=true") as engine:
                _prefix(engine, "bf16", report)
            _swap(folder, device, report)


@contextlib.contextmanager
def _torch_on_cpu() -> Iterator[None]:
    """Neither native nor Triton kernels meanwhile."""
    before = os.environ.get("INTAGLIO_TRITON")
    os.environ["INTAGLIO_TRITON"] = "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ["INTAGLIO_TRITON"]
        else:
            os.environ["INTAGLIO_TRITON"] = before


def _engine(folder: Path, device: torch.device, dtype: str, mode: str, *overrides: str) -> Any:
    from intaglio.config import parse_overrides
    from intaglio.engine import Engine

    fixed = [f"model={folder}", f"dtype={dtype}", f"device={device.type}", f"numerics.mode={mode}"]
    return Engine(parse_overrides([*fixed, "kv_cache.blocks=64", "threads.count=1", *overrides]))


def _generate(engine: Any, prompts: list[list[int]], new: int) -> list[Any]:
    from intaglio.intake.request import SamplingParams

    params = SamplingParams(max_tokens=new, ignore_eos=True)
    outputs: list[Any] = engine.generate(prompts, params, return_logits=True, on_error="raise")
    return outputs


def _tokens(engine: Any, new: int) -> list[list[int]]:
    return [output.token_ids for output in _generate(engine, list(PROMPTS), new)]


def _compare(engine: Any, mode: str, new: int, want: list[list[int]], reference: str, report: Report) -> None:
    got = _tokens(engine, new)
    computed = engine.counters()["tokens_computed"]
    path = str(engine.effective_config()["kernel_path"])
    expected = sum(len(prompt) + new - 1 for prompt in PROMPTS)
    passed = got == want and "triton" in path and "triton" not in reference and computed == expected
    report.check(
        f"tokens {mode} fp32",
        passed,
        tokens=sum(map(len, got)),
        computed=computed,
        path=path,
        reference=reference,
    )


def _prefix(engine: Any, dtype: str, report: Report) -> None:
    """One prompt computed, then read from the prefix cache, then again beside another: the same bits."""
    prompt = [(11 * i + 5) % 500 for i in range(40)]
    (first,) = _generate(engine, [prompt], 3)
    hit = engine.counters()["prefix_hit_tokens"]
    (again,) = _generate(engine, [prompt], 3)
    alone = engine.counters()["prefix_hit_tokens"] - hit
    beside = _generate(engine, [[7, 7, 7], prompt], 3)[1]
    both = engine.counters()["prefix_hit_tokens"] - hit - alone
    report.check(f"prefix hit {dtype}", _same(first, again) and alone == 32, hit=alone)
    report.check(f"batched with a prefix hit {dtype}", _same(first, beside) and both == 32, hit=both)


def _swap(folder: Path, device: torch.device, report: Report) -> None:
    """More requests than the pool holds: some are swapped to pinned memory and back, and no bit moves."""
    prompts = [[(13 * i + 7 * n) % 500 for i in range(60)] for n in range(6)]
    with _engine(folder, device, "bf16", "invariant") as engine:
        want = _generate(engine, prompts, 40)
    tier = ("kv_cache.blocks=16", "host_tier.enabled=true", "host_tier.memory_mib=64")
    with _engine(folder, device, "bf16", "invariant", *tier) as engine:
        got = _generate(engine, prompts, 40)
        counters = engine.counters()
    same = all(_same(a, b) for a, b in zip(got, want, strict=True))
    back, failures = counters["swap_in_blocks"], counters["swap_failures"]
    report.check("swapped and back bf16", same and back > 0 and not failures, blocks=back, failures=failures)


def _same(ours: Any, theirs: Any) -> bool:
    pairs = zip(ours.logits, theirs.logits, strict=True)
    return ours.token_ids == theirs.token_ids and all(np.array_equal(a, b) for a, b in pairs)
