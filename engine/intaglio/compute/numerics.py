"""The two ways to do arithmetic: `fast` (library kernels) and `invariant` (one order of additions per output).

A decoder calls the five operations below and never a library kernel directly, so that the mode is one object.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from intaglio.compute.attention import SERIAL_ELEMENTS, attend_fast, attend_tiled
from intaglio.compute.layers import Layout, Linear
from intaglio.compute.packing import can_pack, packed_linear
from intaglio.compute.weights import Layouts

ROW_TILE = 16


class Numerics(Protocol):
    """What a decoder needs. Rows are tokens: x is [tokens, features]."""

    @property
    def path(self) -> str:
        """Names the kernels taken; part of the environment's identity."""
        ...

    def linear(self, x: torch.Tensor, w: Linear) -> torch.Tensor: ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x / sqrt(mean(x^2) + eps) * weight (fp32) over the last dimension, computed in fp32."""
        ...

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of [tokens, 2 * width], gate first."""
        ...

    def rotate(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotary embedding in place on [tokens, heads, d] with tables [tokens, 1, d] (see RopeTable)."""
        ...

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        context: int,
        window: int | None = None,
        need_lse: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See compute/attention.py."""
        ...


def rotate_in_place(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Products and sum as separate fp32 operations: nothing is contracted, so that every row rounds alike."""
    x = heads if heads.dtype == torch.float32 else heads.float()
    swapped = torch.roll(x, x.shape[-1] // 2, -1)
    x.mul_(cos).add_(swapped.mul_(sin))
    if x is not heads:
        heads.copy_(x)


class FastNumerics:
    """Library kernels with the fewest operations."""

    def __init__(self, device: torch.device, kernel: str) -> None:
        self._device = device
        self._kernel = kernel

    @property
    def path(self) -> str:
        return f"fast/{self._device.type}/{self._kernel}+sdpa"

    def linear(self, x: torch.Tensor, w: Linear) -> torch.Tensor:
        if w.layout is Layout.PACKED:
            return packed_linear(x, w.weight, w.bias)
        if w.layout is Layout.ROWS:
            return F.linear(x, w.weight, w.bias)
        return torch.mm(x, w.weight) if w.bias is None else torch.addmm(w.bias, x, w.weight)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        norm: torch.Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
        return (wide * scale).mul_(weight).to(x.dtype)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        width = gate_up.shape[-1] // 2
        return F.silu(gate_up[:, :width]).mul_(gate_up[:, width:])

    def rotate(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        rotate_in_place(heads, cos, sin)

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        context: int,
        window: int | None = None,
        need_lse: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return attend_fast(queries, keys, values, context, window, need_lse)


class InvariantNumerics:
    """Every product in row tiles of one fixed shape, every row's elementwise work cut at row boundaries.

    Whether the machine's libraries then give each row the same bits is not assumed: see self_test.
    """

    def __init__(self, device: torch.device, kernel: str) -> None:
        self._device = device
        self._kernel = kernel

    @property
    def path(self) -> str:
        return f"invariant/{self._device.type}/{self._kernel}/rows{ROW_TILE}+tiled"

    def linear(self, x: torch.Tensor, w: Linear) -> torch.Tensor:
        count, tiles = x.shape[0], -(-x.shape[0] // ROW_TILE)
        # Always copied: a tile then starts on the same alignment wherever its rows came from.
        padded = torch.zeros(tiles * ROW_TILE, w.in_features, dtype=x.dtype, device=x.device)
        padded[:count] = x
        out = torch.empty(tiles * ROW_TILE, w.out_features, dtype=x.dtype, device=x.device)
        for start in range(0, tiles * ROW_TILE, ROW_TILE):
            _one_tile(padded[start : start + ROW_TILE], w, out[start : start + ROW_TILE])
        if w.bias is not None:
            out.add_(w.bias)
        return out[:count]

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        return (wide * scale).mul_(weight).to(x.dtype)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        width = gate_up.shape[-1] // 2
        gate, up = gate_up[:, :width], gate_up[:, width:]
        out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        # The library's vector and scalar exp differ in the last bit: slabs that run serially over whole rows
        # keep each element on the same side whatever rows stand beside it.
        step = max(1, (SERIAL_ELEMENTS - 1) // width)
        for start in range(0, gate.shape[0], step):
            rows = slice(start, start + step)
            out[rows] = F.silu(gate[rows]).mul_(up[rows])
        return out

    def rotate(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        rotate_in_place(heads, cos, sin)

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        context: int,
        window: int | None = None,
        need_lse: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return attend_tiled(queries, keys, values, context, window, need_lse)


def _one_tile(x: torch.Tensor, w: Linear, out: torch.Tensor) -> None:
    if w.layout is Layout.PACKED:
        out.copy_(packed_linear(x, w.weight, None))
    else:
        torch.mm(x, w.weight if w.layout is Layout.COLUMNS else w.weight.t(), out=out)


def choose(mode: str, device: torch.device, layouts: Layouts) -> Numerics:
    """The numerics of a configured mode over linears of these layouts."""
    kernel = f"{layouts.linear.value}-{layouts.tied_head.value}"
    return InvariantNumerics(device, kernel) if mode == "invariant" else FastNumerics(device, kernel)


def choose_layouts(dtype: torch.dtype, device: torch.device) -> Layouts:
    """The fastest layouts that the device offers. An fp32 head on a CPU is read fastest by columns."""
    columns = device.type == "cpu" and dtype == torch.float32
    tied_head = Layout.COLUMNS if columns else Layout.ROWS
    return Layouts(Layout.PACKED if can_pack(dtype, device) else tied_head, tied_head)
