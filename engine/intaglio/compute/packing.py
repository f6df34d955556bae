"""Linears whose weights oneDNN has laid out in its own blocks: one to two times as fast as plain ones on a CPU.

torch reaches them by the operators its own compiler emits. They are probed before use and never required.
"""

from __future__ import annotations

import torch

# Weights are laid out for this many rows; the same blocks serve one row and hundreds well.
_PACK_ROWS = 16


def pack(weight: torch.Tensor) -> torch.Tensor:
    """An opaque copy of [out, in] in oneDNN's blocks, of the same size."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
    return packed


def packed_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x W^T + b for contiguous x [tokens, in]."""
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return y


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this build and processor have the operators for `dtype` and they compute a linear."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    draw = torch.Generator().manual_seed(7)
    weight = torch.randn(48, 32, generator=draw).to(dtype)
    x = torch.randn(3, 32, generator=draw).to(dtype)
    try:
        with torch.inference_mode():
            y = packed_linear(x, pack(weight), None)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    exact = x.double() @ weight.double().t()
    bound = 2.0 ** (-6 if dtype == torch.bfloat16 else -18) * exact.abs().max()
    return bool(((y.double() - exact).abs().max() <= bound).item())
