"""Compile every kernel to machine code for a compute capability, without a device.

    python tests/gpu/compiled.py 80 90

One JSON line per kernel: what it was compiled as, its shared memory, whether it uses tensor cores.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from intaglio.compute.gpu import attention_kernels, linear_kernel, ops, row_kernels, tiles

Kernel = Any
# Types of the arguments that are not those of the model's own numbers.
FIXED = {
    **dict.fromkeys(("tables", "tiles", "slots", "positions"), "*i32"),
    **dict.fromkeys(("lse", "tops", "totals", "accs"), "*fp32"),
    **dict.fromkeys(("table_width", "split_keys", "tokens", "rows"), "i32"),
    "scale": "fp32",
}


def kernels(dim: int) -> Iterator[tuple[Kernel, dict[str, object], dict[str, str]]]:
    """(kernel, constants, types of its own) as a model with heads of `dim` launches them."""
    attention = {
        "GROUPS": 3,
        "KV_HEADS": 3,
        "Q_STRIDE": 15 * dim,
        "DIM": dim,
        "DIM_PAD": tiles.padded(dim),
        "BLOCK": 16,
        "KEYS": tiles.KEY_TILE,
        "WIDE": False,
        "FIELDS": attention_kernels.TILE_FIELDS,
    }
    narrow, wide = {"ROWS": tiles.DECODE_ROWS, "WINDOW": 0}, {"ROWS": tiles.PREFILL_ROWS, "WINDOW": 100}
    yield attention_kernels.paged_decode, attention | narrow, {}
    yield attention_kernels.paged_prefill, attention | wide, {}
    yield (
        attention_kernels.merge_splits,
        {"GROUPS": 3, "GROUPS_PAD": 4, "KV_HEADS": 3, "DIM": dim, "DIM_PAD": tiles.padded(dim)},
        {},
    )
    sizes = {"ROWS": tiles.LINEAR_ROWS, "OUTPUTS": tiles.LINEAR_OUTPUTS, "INPUTS": tiles.LINEAR_INPUTS}
    yield linear_kernel.fixed_linear, sizes | {"IN": 576, "OUT": 960, "BIASED": True, "WIDE": False}, {}
    yield row_kernels.store_rows, {"FRESH_STRIDE": 960, "WIDTH": 384, "WIDTH_PAD": 512}, {}
    norm = {"eps": 1e-5, "X_STRIDE": 576, "HEADS": 1, "WIDTH": 576, "WIDTH_PAD": 1024}
    yield row_kernels.rms_norm_rows, norm, {"weight": "*fp32"}
    yield row_kernels.silu_times, {"STRIDE": 3072, "WIDTH": 1536, "COLUMNS": tiles.GATED_COLUMNS}, {}


def compile_one(kernel: Kernel, constants: dict[str, object], own: dict[str, str], dtype: str, capability: int) -> dict[str, object]:  # fmt: skip
    """Compile and say what came out. Raises what the compiler raises."""
    names = kernel.arg_names
    types = {name: own.get(name, FIXED.get(name, f"*{dtype}")) for name in names}
    types |= dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if types[name][0] == "*"}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=types, constexprs=values, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(ops.LAUNCH))
    return {
        "kernel": kernel.__name__,
        "dtype": dtype,
        "capability": capability,
        "shared": made.metadata.shared,
        "code": len(made.asm["cubin"]),
        "tensor_cores": "mma" in made.asm["ptx"],
    }


def main(capabilities: list[str]) -> None:
    """bf16 with heads of 128 dimensions, fp32 with 64."""
    for capability in map(int, capabilities):
        for dtype, dim in (("bf16", 128), ("fp32", 64)):
            for kernel, constants, own in kernels(dim):
                print(json.dumps({"dim": dim} | compile_one(kernel, constants, own, dtype, capability)))


if __name__ == "__main__":
    main(sys.argv[1:])
