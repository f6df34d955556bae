"""The parts of one decoder layer as plain records, and the rotary table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch

from intaglio.compute.spec import ModelSpec, RopeSpec


class Layout(Enum):
    """How a linear's weight lies in memory."""

    ROWS = "rows"  # [out, in], as checkpoints have it
    COLUMNS = "columns"  # [in, out]
    PACKED = "packed"  # oneDNN's own blocks; opaque, CPU only


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x W^T + b, x [tokens, in_features]."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    layout: Layout
    in_features: int
    out_features: int

    def run(self, start: int, stop: int) -> torch.Tensor:
        """See LinearRows; only of Layout.ROWS."""
        return self.weight[start:stop]

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of W by number, [len(ids), in]: the embedding of a head that is tied to it."""
        if self.layout is Layout.COLUMNS:
            return self.weight.index_select(1, ids).t().contiguous()
        return self.weight.index_select(0, ids)


class LinearRows(Protocol):
    """A linear's [out, in] weight that is read a few rows at a time, each time into memory of its own."""

    @property
    def bias(self) -> torch.Tensor | None: ...

    @property
    def in_features(self) -> int: ...

    @property
    def out_features(self) -> int: ...

    def run(self, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop)."""
        ...


@dataclass(frozen=True, slots=True)
class LayerRows:
    """A decoder layer as LayerWeights has it, whose linears are read in runs of rows."""

    input_norm: torch.Tensor
    qkv: LinearRows
    qk_norm: torch.Tensor | None
    out: LinearRows
    post_norm: torch.Tensor
    gate_up: LinearRows
    down: LinearRows
    window: int | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. `qkv` holds q, k and v along its outputs, `gate_up` gate then up. Norms are fp32.

    `qk_norm` is [heads + kv_heads, head_dim] where queries and keys are normalised (Qwen3), else None.
    """

    input_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor | None
    out: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    window: int | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights of one decoder. `embedding` is None when the head's rows serve as embedding."""

    embedding: torch.Tensor | None
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: Linear
    dtype: torch.dtype
    parameters: int
    nbytes: int

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [n] to hidden states [n, hidden], a fresh tensor."""
        if self.embedding is None:
            return self.head.rows(ids)
        return self.embedding.index_select(0, ids)


class RopeTable:
    """cos and sin of every position, fp32 [positions, 1, head_dim], grown on demand.

    rotate(x) = x cos + swap(x) sin, with swap exchanging the two halves of a head and the first half of sin
    negated (the half-split layout of transformers' checkpoints).
    """

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        self._inv_freq = inverse_frequencies(spec.rope, spec.head_dim).to(device)
        self._scale = 1.0 / spec.rope.factor if spec.rope.kind == "linear" else 1.0
        self._cos = torch.empty(0, 1, spec.head_dim, device=device)
        self._sin = self._cos

    def tables(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin that cover positions 0 .. positions-1."""
        if positions > self._cos.shape[0]:
            self._grow(max(positions, 2 * self._cos.shape[0], 256))
        return self._cos, self._sin

    def _grow(self, positions: int) -> None:
        steps = torch.arange(positions, dtype=torch.float32, device=self._inv_freq.device) * self._scale
        angles = torch.outer(steps, self._inv_freq)
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat((cos, cos), -1).unsqueeze(1)
        self._sin = torch.cat((-sin, sin), -1).unsqueeze(1)


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """The rotary frequencies, fp32 [head_dim / 2]; llama3 stretches the low ones (Llama 3.1 model card)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    freqs = 1.0 / (rope.theta**exponents)
    if rope.kind != "llama3":
        return freqs
    wavelengths = 2 * math.pi / freqs
    low = rope.original_positions / rope.low_freq_factor
    high = rope.original_positions / rope.high_freq_factor
    blend = (rope.original_positions / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    stretched = torch.where(wavelengths > low, freqs / rope.factor, freqs)
    between = (1 - blend) * stretched / rope.factor + blend * stretched
    return torch.where((wavelengths <= low) & (wavelengths >= high), between, stretched)
