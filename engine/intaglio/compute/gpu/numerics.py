"""Both numerics modes on Triton kernels (see compute/numerics.py for the contract)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from intaglio.compute.gpu import ops
from intaglio.compute.gpu.attend import PagedAttention
from intaglio.compute.gpu.status import Status
from intaglio.compute.gpu.tiles import LINEAR_ROWS, SPLIT_KEYS
from intaglio.compute.layers import Linear
from intaglio.compute.numerics import rotate_in_place
from intaglio.compute.spec import ModelSpec


class TritonNumerics:
    """fast: library linears; invariant: linears in tiles of one shape and attention in fixed splits."""

    def __init__(
        self, mode: str, spec: ModelSpec, dtype: torch.dtype, device: torch.device, how: Status
    ) -> None:
        self._invariant = mode == "invariant"
        # The interpreter cannot multiply bfloat16 (NumPy has none), so there the operands are widened first.
        self._wide = how.interpreted and dtype == torch.bfloat16
        self.attention = PagedAttention(spec.heads, spec.kv_heads, spec.head_dim, self._invariant, self._wide)
        linears = f"rows{LINEAR_ROWS}+splits{SPLIT_KEYS}" if self._invariant else "library+splits"
        self._path = f"{mode}/{device.type}/{how.name}/{linears}"

    @property
    def path(self) -> str:
        return self._path

    def linear(self, x: torch.Tensor, w: Linear) -> torch.Tensor:
        if self._invariant:
            return ops.linear(x, w.weight, w.bias, self._wide)
        return F.linear(x, w.weight, w.bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return ops.rms_norm(x, weight, eps)

    def swiglu(self, gate_up: torch.Tensor) -> torch.Tensor:
        return ops.swiglu(gate_up)

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
        out, lse = self.attention.one_row(queries, keys, values, context, window)
        return out, lse if need_lse else None
