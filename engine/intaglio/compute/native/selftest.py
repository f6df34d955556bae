"""A short proof before native kernels are used: right values, and the same bits for any companions and chunks."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

from intaglio.compute.native.library import Context, Library
from intaglio.compute.native.model import linear_struct
from intaglio.compute.native.ops import attend

_SPLITS = (1, 2, 3, 5, 7, 16, 33)
_TOKENS = 70


def failures(library: Library, isa: str) -> list[str]:
    """Names of the checks that an instruction set fails on this machine; empty is good."""
    context = Context(library, isa, threads=2)
    try:
        draw = torch.Generator().manual_seed(20260102)
        checks = [
            *_linear(context, library, torch.float32, draw),
            *_linear(context, library, torch.bfloat16, draw),
            *_attention(context, torch.float32, draw),
            *_attention(context, torch.bfloat16, draw),
            *_rows(context, draw),
        ]
    finally:
        context.close()
    return [name for name, passed in checks if not passed]


def _exact(sums: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Products in float64 without a matrix library, whose buffers would stay resident beside the model."""
    return torch.from_numpy(np.einsum(sums, a.double().numpy(), b.double().numpy(), optimize=False))


def _near(ours: torch.Tensor, exact: torch.Tensor, bits: int) -> bool:
    return bool(((ours.double() - exact).abs().max() <= 2.0**-bits * exact.abs().max()).item())


def _linear(
    context: Context, library: Library, dtype: torch.dtype, draw: torch.Generator
) -> list[tuple[str, bool]]:
    weight = torch.randn(200, 131, generator=draw).to(dtype)
    x = torch.randn(_TOKENS, 131, generator=draw).to(dtype).float()
    struct, keep = linear_struct(library, weight)
    whole = context.linear(struct, x)
    parts = [torch.cat([context.linear(struct, x[s : s + n]) for s in range(0, _TOKENS, n)]) for n in _SPLITS]
    del keep
    name = f"linear {dtype}"
    return [
        (f"{name} value", _near(whole, _exact("rk,nk->rn", x, weight), 18)),
        (f"{name} rows", all(torch.equal(part, whole) for part in parts)),
    ]


def _attention(context: Context, dtype: torch.dtype, draw: torch.Generator) -> list[tuple[str, bool]]:
    q = torch.randn(_TOKENS, 6, 32, generator=draw).to(dtype).float()
    kv = torch.randn(_TOKENS, 2, 2, 32, generator=draw).to(dtype)
    whole = attend(context, q, kv, 0)[0]
    parts = [
        torch.cat([attend(context, q[s : s + n], kv[: s + n], s)[0] for s in range(0, _TOKENS, n)])
        for n in _SPLITS
    ]
    keys, values = (kv[:, i].repeat_interleave(3, 1) for i in (0, 1))
    scores = _exact("qhd,khd->hqk", q, keys) / math.sqrt(32)
    hidden = torch.ones(_TOKENS, _TOKENS, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(hidden, -math.inf).softmax(-1)
    exact = _exact("hqk,khd->qhd", shares, values)
    return [
        (f"attention {dtype} value", _near(whole, exact, 18 if dtype == torch.float32 else 6)),
        (f"attention {dtype} chunks", all(torch.equal(part, whole) for part in parts)),
    ]


def _rows(context: Context, draw: torch.Generator) -> list[tuple[str, bool]]:
    x = 4 * torch.randn(3, 77, generator=draw)
    up, weight = torch.randn(3, 77, generator=draw), torch.randn(77, generator=draw)
    normed = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    best, values = context.top(x)
    logs = torch.logsumexp(x.double(), -1)
    return [
        ("rms_norm", _near(context.rms_norm(x, weight, 1e-5), normed, 20)),
        ("swiglu", _near(context.swiglu(x, up), F.silu(x.double()) * up.double(), 20)),
        ("top", best == x.argmax(-1).tolist() and _near(values[:, 2], logs, 20)),
    ]
