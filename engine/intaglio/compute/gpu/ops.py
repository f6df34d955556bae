"""Launches of the row kernels and of the fixed linear: torch tensors in, fresh torch tensors out."""

from __future__ import annotations

import torch

from intaglio.compute.gpu import linear_kernel, row_kernels
from intaglio.compute.gpu.tiles import (
    GATED_COLUMNS,
    LINEAR_INPUTS,
    LINEAR_OUTPUTS,
    LINEAR_ROWS,
    WARPS,
    padded,
)
from intaglio.errors import NumericsError

# Contraction of a product and a sum into one rounding is left to no compiler: it may differ between binaries.
LAUNCH = {"num_warps": WARPS, "enable_fp_fusion": False}
_ALIGNMENT = 16


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy that starts on 16 bytes: alignment chooses the binary, and a binary its order of additions."""
    return x if x.data_ptr() % _ALIGNMENT == 0 else x.clone()


def store_rows(fresh: torch.Tensor, layer: torch.Tensor, slots: torch.Tensor) -> None:
    """layer[slots[i]] = fresh[i], cast; slot -1 goes nowhere.

    fresh [tokens, 2, kv_heads, d] whose rows may lie apart, layer [slots, 2, kv_heads, d], slots int32 [tokens]
    within the layer (see layout.lay_out).
    """
    tokens, width = fresh.shape[0], fresh[0].numel()
    row_kernels.store_rows[(tokens,)](
        fresh,
        layer,
        slots,
        FRESH_STRIDE=fresh.stride(0),
        WIDTH=width,
        WIDTH_PAD=padded(width),
        **LAUNCH,
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See Numerics.rms_norm. x [tokens, width] or [tokens, heads, width], its last two dimensions without gaps."""
    heads, width = (1, x.shape[1]) if x.dim() == 2 else (x.shape[1], x.shape[2])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x = aligned(x)
    row_kernels.rms_norm_rows[(x.shape[0], heads)](
        x,
        weight,
        out,
        eps=eps,
        X_STRIDE=x.stride(0),
        HEADS=heads,
        WIDTH=width,
        WIDTH_PAD=padded(width),
        **LAUNCH,
    )
    return out


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """See Numerics.swiglu; rounded once."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    gate_up = aligned(gate_up)
    row_kernels.silu_times[(tokens, -(-width // GATED_COLUMNS))](
        gate_up, out, STRIDE=gate_up.stride(0), WIDTH=width, COLUMNS=GATED_COLUMNS, **LAUNCH
    )
    return out


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, wide: bool) -> torch.Tensor:
    """x weight^T + bias for x [rows, in] and weight [out, in], rounded once; no row depends on another.

    wide: multiply in fp32 whatever the operands' format. Raises NumericsError for operands of two formats.
    """
    if x.dtype != weight.dtype:
        raise NumericsError(f"a linear of {weight.dtype} cannot take {x.dtype}; cast one of them")
    x = aligned(x.contiguous())
    rows, outputs = x.shape[0], weight.shape[0]
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    grid = (-(-outputs // LINEAR_OUTPUTS), -(-rows // LINEAR_ROWS))
    linear_kernel.fixed_linear[grid](
        x,
        weight,
        x if bias is None else bias,
        out,
        rows,
        IN=x.shape[1],
        OUT=outputs,
        BIASED=bias is not None,
        ROWS=LINEAR_ROWS,
        OUTPUTS=LINEAR_OUTPUTS,
        INPUTS=LINEAR_INPUTS,
        WIDE=wide,
        **LAUNCH,
    )
    return out
