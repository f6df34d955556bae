"""A short proof before the Triton kernels are used: a model's heads over scattered blocks, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from triton.errors import TritonError

from intaglio.compute.attention import visible
from intaglio.compute.gpu import ops
from intaglio.compute.gpu.attend import place
from intaglio.compute.gpu.layout import Span
from intaglio.compute.gpu.numerics import TritonNumerics
from intaglio.compute.spec import ModelSpec
from intaglio.errors import NumericsError

_BLOCK_TOKENS = 16
_TOKENS = 75
# Whole, in two chunks, and with the last tokens decoded one by one.
_CHUNKS = ((75,), (37, 38), (72, 1, 1, 1))
# Bits that a sum of this length keeps, by the coarser of the formats.
_BITS = {torch.float32: 16, torch.float16: 8, torch.bfloat16: 5}


@dataclass(frozen=True, slots=True)
class _Case:
    """Inputs of one row in a store whose every other slot is NaN."""

    queries: torch.Tensor
    fresh: torch.Tensor
    layer: torch.Tensor
    blocks: tuple[int, ...]


def require_paged(
    numerics: TritonNumerics, spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device
) -> None:
    """Store, prefill, chunks and decode over scattered blocks with poisoned tails.

    Raises NumericsError if a value is wrong, if chunks change bits where they must not, or if a kernel does not
    compile or run on this device.
    """
    try:
        case = _case(spec, dtype, kv_dtype, device)
        window = next((w for w in spec.windows if w is not None), None)
        short = None if window is None else min(window, _TOKENS // 2)
        runs = [_run(numerics, case, chunks, short) for chunks in _CHUNKS]
    except (TritonError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise NumericsError(f"the Triton kernels do not run here: {type(error).__name__}: {error}") from error
    exact = _exact(spec, case, short)
    bound = 2.0 ** -min(_BITS[dtype], _BITS[kv_dtype]) * exact.abs().max()
    for chunks, out in zip(_CHUNKS, runs, strict=True):
        if not bool(((out.double() - exact).abs().max() <= bound).item()):
            raise NumericsError(f"paged attention in chunks of {chunks} is wrong on {device}")
    if numerics.attention.uniform and not all(torch.equal(out, runs[0]) for out in runs):
        raise NumericsError(f"paged attention changed bits with the chunk on {device}", field="numerics.mode")


def _case(spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device) -> _Case:
    draw = torch.Generator().manual_seed(20260103)
    count = -(-_TOKENS // _BLOCK_TOKENS)
    blocks = tuple(2 * count - 1 - 2 * i for i in range(count))
    shape = (2, spec.kv_heads, spec.head_dim)
    queries = torch.randn(_TOKENS, spec.heads, spec.head_dim, generator=draw).to(device, dtype)
    fresh = torch.randn(_TOKENS, *shape, generator=draw).to(device, dtype)
    layer = torch.full((2 * count * _BLOCK_TOKENS, *shape), float("nan"), dtype=kv_dtype, device=device)
    return _Case(queries, fresh, layer, blocks)


def _run(numerics: TritonNumerics, case: _Case, chunks: Sequence[int], window: int | None) -> torch.Tensor:
    """All tokens in chunks, each stored before it attends, over a freshly poisoned store."""
    layer = torch.full_like(case.layer, float("nan"))
    parts, start = [], 0
    for count in chunks:
        stop = start + count
        ops.store_rows(case.fresh[start:stop], layer, _slots(case.blocks, start, stop, layer.device))
        span = Span(0, stop - start, start, case.blocks)
        attention = numerics.attention
        table, sets = place([span], _BLOCK_TOKENS, attention.groups, attention.uniform, layer.device)
        parts.append(attention.run(case.queries[start:stop], layer, table, _BLOCK_TOKENS, sets, window)[0])
        start = stop
    return torch.cat(parts)


def _slots(blocks: Sequence[int], start: int, stop: int, device: torch.device) -> torch.Tensor:
    slots = [blocks[p // _BLOCK_TOKENS] * _BLOCK_TOKENS + p % _BLOCK_TOKENS for p in range(start, stop)]
    return torch.tensor(slots, dtype=torch.int32, device=device)


def _exact(spec: ModelSpec, case: _Case, window: int | None) -> torch.Tensor:
    """[tokens, heads * d] in float64, of the values as the store rounds them."""
    held = case.fresh.to(case.layer.dtype).double().transpose(0, 2).repeat_interleave(spec.groups, 0)
    keys, values = held[:, 0], held[:, 1]
    scores = case.queries.double().transpose(0, 1) @ keys.transpose(1, 2) / spec.head_dim**0.5
    hidden = ~visible(_TOKENS, _TOKENS, 0, 0, window, scores.device)
    mixed = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ values
    return mixed.transpose(0, 1).reshape(_TOKENS, -1)
