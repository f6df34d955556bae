"""Weights read from a mapped file a few rows at a time, so that a tensor is never resident as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from intaglio.compute import resident

# Below this, pages leave with the file that is closed after the layer; above, they are dropped as they are read.
_LARGE = 256 << 10
_COPY_ROWS = 4096


class Stack:
    """Several [out, in] tensors of one input, their outputs one after another (see layers.LinearRows)."""

    def __init__(
        self, sources: Sequence[torch.Tensor], dtype: torch.dtype, bias: torch.Tensor | None
    ) -> None:
        self._sources = tuple(sources)
        self._mapped: tuple[bool, ...] | None = None
        self._dtype = dtype
        self.bias = bias
        self.in_features = int(sources[0].shape[1])
        self.out_features = sum(int(source.shape[0]) for source in sources)

    def run(self, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) in the stack's dtype, a fresh tensor. Pages of a mapped file leave once they are read."""
        if self._mapped is None:
            self._mapped = mapped(self._sources)
        out = torch.empty(stop - start, self.in_features, dtype=self._dtype)
        first = 0
        for source, in_file in zip(self._sources, self._mapped, strict=True):
            low, high = max(start - first, 0), min(stop - first, int(source.shape[0]))
            if low < high:
                part = source[low:high]
                out[first + low - start : first + high - start].copy_(part)
                if in_file:
                    resident.drop(part.data_ptr(), part.nbytes)
            first += int(source.shape[0])
        return out


def copy_rows(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor of the same shape, part by part. Pages of a mapped file leave once they are read."""
    (in_file,) = mapped((source,))
    for start in range(0, source.shape[0], _COPY_ROWS):
        part = source[start : start + _COPY_ROWS]
        target[start : start + _COPY_ROWS].copy_(part)
        if in_file:
            resident.drop(part.data_ptr(), part.nbytes)


def mapped(sources: Sequence[torch.Tensor]) -> tuple[bool, ...]:
    """Which tensors are views into mapped files large enough to be dropped in parts (resident.drop)."""
    large = [source.nbytes >= _LARGE and source.device.type == "cpu" for source in sources]
    if not any(large):
        return tuple(large)
    found = resident.mapped([(source.data_ptr(), source.nbytes) for source in sources])
    return tuple(both and one for both, one in zip(large, found, strict=True))
