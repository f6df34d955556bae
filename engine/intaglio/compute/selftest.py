"""Start-up proof of invariant mode: the model's own shapes and dtype must give every row the same bits.

Library kernels choose their order of additions by shape, thread count and processor. What held on one machine is
no promise on another, so the mode is refused where the proof fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from intaglio.compute.layers import Linear, ModelWeights
from intaglio.compute.numerics import Numerics
from intaglio.compute.spec import ModelSpec
from intaglio.errors import NumericsError

ROW_COUNTS = (1, 2, 3, 4, 5, 7, 16, 17, 33, 64)
CHUNKS = (1, 2, 5, 16, 33)
ATTENTION_TOKENS = 130


def require_invariance(ops: Numerics, spec: ModelSpec, weights: ModelWeights) -> int:
    """Run every check and return how many comparisons were made.

    Raises NumericsError naming each operation whose rows changed with their companions.
    """
    compared, failed = 0, []
    for name, passes in _checks(ops, spec, weights):
        compared += 1
        if not passes and name not in failed:
            failed.append(name)
    if failed:
        raise NumericsError(
            f"invariant mode is not bitwise on this machine: {', '.join(failed)} changed with batch or chunk; "
            "use numerics.mode=fast here, or another thread count",
            field="numerics.mode",
        )
    return compared


def _checks(ops: Numerics, spec: ModelSpec, weights: ModelWeights) -> Iterator[tuple[str, bool]]:
    layer, head = weights.layers[0], weights.head
    dtype, device = weights.dtype, weights.final_norm.device
    draw = torch.Generator().manual_seed(20260101)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(device=device, dtype=dtype)

    linears = {"qkv": layer.qkv, "out": layer.out, "gate_up": layer.gate_up, "down": layer.down, "head": head}
    for name, w in linears.items():
        yield from _rows(f"linear {name}", partial(_apply_linear, ops, w), noise(64, w.in_features))
    norm = layer.input_norm
    yield from _rows("rms_norm", lambda x: ops.rms_norm(x, norm, spec.norm_eps), noise(64, spec.hidden))
    yield from _rows("swiglu", ops.swiglu, noise(64, 2 * spec.intermediate))
    heads = noise(64, spec.heads + spec.kv_heads, spec.head_dim)
    if layer.qk_norm is not None:
        qk = layer.qk_norm
        yield from _rows("qk_norm", lambda x: ops.rms_norm(x, qk, spec.norm_eps), heads)
    yield from _rotation(ops, heads)
    for window in dict.fromkeys(spec.windows):
        yield from _attention(ops, spec, window, noise)


def _apply_linear(ops: Numerics, w: Linear, x: torch.Tensor) -> torch.Tensor:
    return ops.linear(x, w)


def _rows(
    name: str, apply: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> Iterator[tuple[str, bool]]:
    """The same rows alone and among others, at the front, at the back and at an odd place between."""
    total = x.shape[0]
    whole = apply(x)
    for count in ROW_COUNTS:
        for start in {0, (total - count) // 3, total - count}:
            yield name, torch.equal(apply(x[start : start + count]), whole[start : start + count])


def _rotation(ops: Numerics, heads: torch.Tensor) -> Iterator[tuple[str, bool]]:
    angles = torch.linspace(0, 3, heads.shape[0] * heads.shape[-1], device=heads.device)
    cos = angles.cos().view(heads.shape[0], 1, -1)
    sin = angles.sin().view(heads.shape[0], 1, -1)
    whole = heads.clone()
    ops.rotate(whole, cos, sin)
    for count in ROW_COUNTS:
        start = (heads.shape[0] - count) // 3
        rows = slice(start, start + count)
        part = heads[rows].clone()
        ops.rotate(part, cos[rows], sin[rows])
        yield "rotary", torch.equal(part, whole[rows])


def _attention(
    ops: Numerics, spec: ModelSpec, window: int | None, noise: Callable[..., torch.Tensor]
) -> Iterator[tuple[str, bool]]:
    """One shot against every chunking; a window is shortened so that it bites within the test's length."""
    tokens = ATTENTION_TOKENS
    short = None if window is None else min(window, tokens // 2)
    q = noise(tokens, spec.heads, spec.head_dim)
    k = noise(spec.kv_heads, tokens, spec.head_dim)
    v = noise(spec.kv_heads, tokens, spec.head_dim)
    whole = ops.attend(q, k, v, 0, short)[0]
    for chunk in CHUNKS:
        parts = [
            ops.attend(q[s : s + chunk], k[:, : s + chunk], v[:, : s + chunk], s, short)[0]
            for s in range(0, tokens, chunk)
        ]
        yield "attention", torch.equal(torch.cat(parts), whole)
