"""Lower bounds of a case on this machine, from rates measured in the same run.

Decoding reads every weight once a step; a prompt costs two operations a weight and token. The bounds count
the weights and, for prompts, attention's products; they leave out the KV cache's traffic and everything else,
so no engine of that format can be faster.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.workloads import Case

BYTES = {"fp32": 4.0, "bf16": 2.0}
_READ_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """The model's arithmetic: elements of the matrices of all layers and of the output head (or the tied
    embedding), layers, and the width of attention (query heads x head size)."""

    body: int
    head: int
    layers: int
    attention_width: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Memory read in GB/s and matrix products in GFLOP/s by dtype, with the threads of the comparison."""

    read_gb_s: float
    matmul_gflop_s: dict[str, float]


def read_shape(folder: Path) -> Shape:
    """From config.json and the headers of the safetensors files."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    body = head = embedding = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        for name, entry in header.items():
            size = _elements(entry.get("shape", [])) if len(entry.get("shape", [])) == 2 else 0
            if name == "lm_head.weight":
                head = size
            elif name.endswith("embed_tokens.weight"):
                embedding = size
            else:
                body += size
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    return Shape(body, head or embedding, config["num_hidden_layers"], heads * width)


def floor(
    case: Case, shape: Shape, dtype: str, rates: Rates, weight_bytes: float | None = None
) -> dict[str, float]:
    """Milliseconds: `tpot_ms` and `wall_ms` of the whole batch, and for a single request `ttft_ms`.

    weight_bytes: of a format whose size is that of a file; else elements times the dtype's bytes. Products are
    bounded by the faster of the measured rates for a quantised format, whose values are converted first.
    """
    total = weight_bytes or (shape.body + shape.head) * BYTES[dtype]
    rate = rates.matmul_gflop_s.get(dtype) or max(rates.matmul_gflop_s.values())
    read_ms = total / rates.read_gb_s / 1e6
    rows = len(case.batch)
    if not case.cache:
        lengths = [len(case.batch[0]) + step for step in range(case.new)]
        steps = [_prompt_gflop(shape, 0, length) / rate * 1e3 for length in lengths]
        mean = sum(steps[1:]) / max(len(steps) - 1, 1)
        return {"ttft_ms": steps[0], "tpot_ms": mean, "wall_ms": sum(steps)}
    prompts = _prompt_gflop(shape, 0, case.shared) if case.shared else 0.0
    prompts += sum(_prompt_gflop(shape, case.shared, len(prompt)) for prompt in case.batch)
    ttft = prompts / rate * 1e3
    step = max(read_ms, rows * 2 * (shape.body + shape.head) / 1e9 / rate * 1e3)
    found = {"tpot_ms": step, "wall_ms": ttft + (case.new - 1) * step}
    return found | ({"ttft_ms": ttft} if rows == 1 else {})


def best(rates: list[Rates]) -> Rates:
    """The highest of each rate: a bound may not rest on a measurement that something else slowed."""
    names = rates[0].matmul_gflop_s
    return Rates(
        max(rate.read_gb_s for rate in rates),
        {name: max(rate.matmul_gflop_s[name] for rate in rates) for name in names},
    )


def _prompt_gflop(shape: Shape, start: int, end: int) -> float:
    """Positions start to end with everything before them known: linears, causal attention, one row of the head."""
    pairs = (end * (end + 1) - start * (start + 1)) / 2
    return (
        2 * shape.body * (end - start) + 4 * pairs * shape.attention_width * shape.layers + 2 * shape.head
    ) / 1e9


def _elements(dims: list[int]) -> int:
    size = 1
    for dim in dims:
        size *= dim
    return size


def measure(threads: int) -> Rates:
    """Best of several: reductions over 512 MiB, and products of 1,024 x 1,536 by 1,536 x 1,536.

    Which reduction reads fastest differs by processor, so the fastest one counts.
    """
    import torch

    torch.set_num_threads(threads)
    memory = torch.ones(_READ_BYTES // 4)
    low, high = memory.chunk(2)
    reductions = (memory.amax, memory.sum, lambda: torch.dot(low, high))
    best = min(_seconds(reduction) for _ in range(6) for reduction in reductions)
    rates = {}
    for name, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        left, right = torch.randn(1024, 1536).to(kind), torch.randn(1536, 1536).to(kind)
        seconds = min(_seconds(lambda a=left, b=right: a @ b) for _ in range(24))
        rates[name] = 2 * 1024 * 1536 * 1536 / seconds / 1e9
    return Rates(_READ_BYTES / best / 1e9, rates)


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(asdict(measure(int(sys.argv[1])))))
