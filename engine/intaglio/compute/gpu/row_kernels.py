"""Triton kernels that handle each row alone: the KV store, root-mean-square norm, gated activation.

No row's result depends on how many rows stand beside it: a program owns whole rows, and integers that change from
step to step are not specialised on.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_rows(fresh, kv, slots, FRESH_STRIDE: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr):
    """kv[slots[token]] = fresh[token], cast to the store's format; slot -1 is padding and goes nowhere.

    Grid (tokens,). fresh [tokens, WIDTH] with row stride FRESH_STRIDE, kv [slots, WIDTH].
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    column = tl.arange(0, WIDTH_PAD)
    keep = (column < WIDTH) & (slot >= 0)
    row = tl.load(fresh + token * FRESH_STRIDE + column, mask=keep, other=0.0)
    tl.store(kv + slot * WIDTH + column, row.to(kv.dtype.element_ty), mask=keep)


@triton.jit
def rms_norm_rows(
    x,
    weight,
    out,
    eps: tl.constexpr,
    X_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
):
    """out = x / sqrt(mean(x^2) + eps) * weight (Zhang, Sennrich 2019), computed in fp32. Grid (tokens, HEADS).

    x [tokens, HEADS, WIDTH] with token stride X_STRIDE, out the same without gaps, weight fp32 [HEADS, WIDTH].
    """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, WIDTH_PAD)
    keep = column < WIDTH
    row = tl.load(x + token * X_STRIDE + head * WIDTH + column, mask=keep, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(row * row, 0) / WIDTH + eps)
    gain = tl.load(weight + head * WIDTH + column, mask=keep, other=0.0)
    normed = row * scale * gain
    tl.store(out + (token * HEADS + head) * WIDTH + column, normed.to(out.dtype.element_ty), mask=keep)


@triton.jit
def silu_times(gate_up, out, STRIDE: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """out = gate / (1 + exp(-gate)) * up, in fp32. Grid (tokens, WIDTH / COLUMNS rounded up); gate first."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    keep = column < WIDTH
    gate = tl.load(gate_up + token * STRIDE + column, mask=keep, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * STRIDE + WIDTH + column, mask=keep, other=0.0).to(tl.float32)
    gated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + token * WIDTH + column, gated.to(out.dtype.element_ty), mask=keep)
