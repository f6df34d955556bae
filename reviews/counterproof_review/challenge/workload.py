"""From a cell to the requests that it stands for. Pure: the same cell, seed and block give the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from counterproof.measure.percentile import PERCENTILES, floor_count
from counterproof.workload.sealed import SealedRequest
from counterproof_review.challenge.reach import Reach
from counterproof_review.challenge.space import Value
from counterproof_review.challenge.texts import RANDOM, Texts

FEWEST = 8
SHORT_PROMPTS, SHORT_OUTPUTS = 8, 4  # in a mix every second request is so much shorter
# What a packet of an older form does not name.
PLAIN: Mapping[str, Value] = {
    "prompt_tokens": 32,
    "output_tokens": 16,
    "concurrency": 1,
    "prefix_overlap": 0.0,
    "entropy": "natural",
    "burstiness": "closed",
    "lengths": "equal",
    "cache": "fresh",
}


@dataclass(frozen=True)
class Load:
    """What one run of a cell sends. `warmup` is sent before and not measured."""

    requests: tuple[SealedRequest, ...]
    warmup: tuple[SealedRequest, ...]
    concurrency: int


@dataclass(frozen=True)
class Builder:
    """Builds loads for one model and one metric.

    statistic   of the claim: a percentile needs its least number of requests
    least       fewest prompt and output tokens in the scope of the claim: no request of a mix is shorter than these
                where its cell is not, so that a cell inside the scope holds nothing from outside
    """

    texts: Texts
    statistic: str
    reach: Reach
    least: tuple[int, int] = (1, 1)

    def load(
        self, cell: Mapping[str, Value], seed: int, block: int, gap_ns: int | None = None, stretch: int = 1
    ) -> Load:
        """The requests of a block.

        gap_ns   time between two bursts, in a cell with bursts; None sends all of them in a closed loop
        stretch  how many times the cell's output tokens are asked for
        """
        full: dict[str, Value] = {**PLAIN, **cell}
        rng = np.random.default_rng([seed, block])
        slots = int(full["concurrency"])
        count = max(self._fewest(), 2 * slots)
        shared = self.texts.window(str(full["entropy"]), int(full["prompt_tokens"]), rng)
        requests = tuple(
            self._request(full, index, shared, rng, stretch, _arrival(full, index, slots, gap_ns))
            for index in range(count)
        )
        return Load(requests, self._warmup(full, rng), slots)

    def _fewest(self) -> int:
        share = PERCENTILES.get(self.statistic)
        return FEWEST if share is None else max(FEWEST, floor_count(share))

    def _request(
        self,
        cell: Mapping[str, Value],
        index: int,
        shared: tuple[int, ...],
        rng: np.random.Generator,
        stretch: int,
        arrival: int | None,
    ) -> SealedRequest:
        size, new = int(cell["prompt_tokens"]), int(cell["output_tokens"])
        if cell["lengths"] == "mixed" and index % 2:
            prompts, outputs = self.least
            size, new = _short(size, SHORT_PROMPTS, prompts), _short(new, SHORT_OUTPUTS, outputs)
        begin = self.texts.beginning[:size]
        room = size - len(begin)
        common = round(float(cell["prefix_overlap"]) * room)
        own = self.texts.window(str(cell["entropy"]), room - common, rng)
        return SealedRequest(
            request_index=index,
            token_ids=(*begin, *shared[:common], *own),
            max_new_tokens=stretch * max(self.reach.least_outputs, new),
            seed=index,
            ignore_eos=True,
            arrival_ns=arrival,
        )

    def _warmup(self, cell: Mapping[str, Value], rng: np.random.Generator) -> tuple[SealedRequest, ...]:
        """One short request, and in a cell with a full cache as many as leave no block untouched."""
        sizes = [min(8, self.reach.longest - self.reach.least_outputs)]
        if cell["cache"] == "full":
            piece = max(1, self.reach.longest // 2)
            sizes += [piece] * -(-self.reach.pool // piece)
        return tuple(
            SealedRequest(
                request_index=index,
                token_ids=self.texts.window(RANDOM, size, rng),
                max_new_tokens=self.reach.least_outputs,
                seed=index,
                ignore_eos=True,
            )
            for index, size in enumerate(sizes)
        )


def _short(size: int, share: int, least: int) -> int:
    return max(1, size // share, min(size, least))


def _arrival(cell: Mapping[str, Value], index: int, slots: int, gap_ns: int | None) -> int | None:
    """Bursts of `slots` requests at once, a gap apart; None where a free slot decides."""
    if cell["burstiness"] != "burst" or gap_ns is None:
        return None
    return index // slots * gap_ns
