"""Weights read from a mapped file a few rows at a time, so that a tensor is never resident as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from intaglio.compute.resident import drop_mapped

# Below this, pages leave with the file that is closed after the layer; above, they are dropped as they are read.
_LARGE = 4 << 20


class Stack:
    """Several [out, in] tensors of one input, their outputs one after another (see layers.LinearRows)."""

    def __init__(
        self, sources: Sequence[torch.Tensor], dtype: torch.dtype, bias: torch.Tensor | None
    ) -> None:
        self._sources = tuple(sources)
        self._dtype = dtype
        self.bias = bias
        self.in_features = int(sources[0].shape[1])
        self.out_features = sum(int(source.shape[0]) for source in sources)

    def run(self, start: int, stop: int) -> torch.Tensor:
        """Rows [start, stop) in the stack's dtype, a fresh tensor."""
        out = torch.empty(stop - start, self.in_features, dtype=self._dtype)
        first = 0
        for source in self._sources:
            low, high = max(start - first, 0), min(stop - first, int(source.shape[0]))
            if low < high:
                part = source[low:high]
                out[first + low - start : first + high - start].copy_(part)
                drop_read(part)
            first += int(source.shape[0])
        return out


def drop_read(part: torch.Tensor) -> None:
    """Let go of the mapped pages under a part that will not be read again."""
    if part.untyped_storage().nbytes() >= _LARGE and part.device.type == "cpu":
        drop_mapped(part.data_ptr(), part.nbytes)
