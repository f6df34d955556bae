"""How a step is launched. Eager runs it; recorded graphs share this seam where a device has them."""

from __future__ import annotations

from typing import Protocol

import torch

from intaglio.compute.batch import StepBatch
from intaglio.compute.decoder import Decoder


class StepGraph(Protocol):
    """Runs a whole decoder over one batch and returns the fp32 logits of its chosen rows."""

    def run(self, batch: StepBatch) -> torch.Tensor: ...


class EagerGraph:
    """Launches every operation as it comes."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def run(self, batch: StepBatch) -> torch.Tensor:
        hidden = self._decoder.forward(batch)
        if batch.logit_index.shape[0] == 0:
            return torch.empty(0, self._decoder.spec.vocab)
        return self._decoder.logits(hidden, batch)
