"""The group of ranks that a linear layer's columns or rows are divided over."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from intaglio.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Ranks that together hold one layer. A group of size 1 holds it alone and its sums are the identity.

    Column-parallel linears keep outputs [start, stop) of `bounds`; row-parallel linears keep inputs and
    their partial results are summed by `all_reduce`.
    """

    size: int = 1
    rank: int = 0

    def bounds(self, units: int) -> tuple[int, int]:
        """This rank's half-open share of `units` equal parts. Raises ConfigError if they do not divide."""
        if units % self.size:
            raise ConfigError(f"{units} cannot be divided over {self.size} ranks", field="parallel.tensor")
        part = units // self.size
        return self.rank * part, (self.rank + 1) * part

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """Sum of the ranks' partial results."""
        if self.size != 1:
            raise ConfigError("a group of several ranks needs a communicator", field="parallel.tensor")
        return partial
