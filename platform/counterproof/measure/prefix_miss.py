"""Which requests of a sealed workload nearly hit what an earlier one left in a prefix cache, by their tokens alone.

A cache of whole blocks finds the common beginning of two prompts, down to a full block, and always leaves one token to
compute. What two prompts share beyond that is computed again: the rest of a block, or all that follows a difference.
For every request the earlier ones next to it in order (from the front and from the back) are looked at, which
holds the longest common beginning and the longest common end. "Earlier" is the order of the workload: requests
that run at the same moment may find less.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_REQUESTS = 5_000


@dataclass(frozen=True)
class NearMiss:
    """One request and the earlier one with which it shares most that cannot be hit.

    common_tokens   leading tokens that both have
    ending_tokens   tokens that both have at their end, beyond the beginning
    hit_tokens      what the request can hit of any earlier one: whole blocks, at least one token left to compute
    """

    request: int
    earlier: int
    prompt_tokens: int
    common_tokens: int
    ending_tokens: int
    hit_tokens: int

    @property
    def lost_tokens(self) -> int:
        """Tokens that both have, and that are computed again."""
        return max(0, self.common_tokens + self.ending_tokens - self.hit_tokens)


def near_misses(prompts: Sequence[Sequence[int]], block_tokens: int) -> list[NearMiss]:
    """Every request that shares something with an earlier one and computes it again; the largest loss first.

    prompts        token ids in the order of the workload, at most MOST_REQUESTS
    block_tokens   tokens per block

    Raises ValueError for a block size below 1 and for more prompts.
    """
    if block_tokens < 1 or len(prompts) > MOST_REQUESTS:
        raise ValueError(f"needs a block size from 1 and at most {MOST_REQUESTS} prompts")
    arrays = [np.asarray(prompt, dtype=">u4") for prompt in prompts]
    forwards, backwards = _Neighbours(), _Neighbours()
    found = []
    for number, ids in enumerate(arrays):
        near = forwards.add(ids, number)
        near += backwards.add(ids[::-1], number)
        miss = _nearest(arrays, number, near, block_tokens)
        if miss is not None and miss.lost_tokens:
            found.append(miss)
    return sorted(found, key=lambda miss: (-miss.lost_tokens, miss.request))


class _Neighbours:
    """Prompts in lexicographic order: the longest common beginning is with one of the two neighbours."""

    def __init__(self) -> None:
        self._ordered: list[tuple[bytes, int]] = []

    def add(self, ids: NDArray[np.uint32], number: int) -> list[int]:
        """The neighbours of `ids` among those added before, which it then joins."""
        key = (np.ascontiguousarray(ids).tobytes(), number)
        place = bisect.bisect(self._ordered, key)
        near = [self._ordered[i][1] for i in (place - 1, place) if 0 <= i < len(self._ordered)]
        self._ordered.insert(place, key)
        return near


def _nearest(
    arrays: Sequence[NDArray[np.uint32]], number: int, near: Sequence[int], block_tokens: int
) -> NearMiss | None:
    ids = arrays[number]
    shared = {other: _shared(ids, arrays[other]) for other in near}
    if not shared or not len(ids):
        return None
    longest = max(common for common, _ in shared.values())
    hit = min(longest, len(ids) - 1) // block_tokens * block_tokens
    other = max(shared, key=lambda n: (sum(shared[n]), shared[n][0], -n))
    common, ending = shared[other]
    return NearMiss(number, other, len(ids), common, ending, hit)


def _shared(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> tuple[int, int]:
    """(common beginning, common end of what follows it)."""
    common = _common(one, other)
    left = min(len(one), len(other)) - common
    return common, min(left, _common(one[::-1], other[::-1]))


def _common(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> int:
    length = min(len(one), len(other))
    unequal = np.flatnonzero(one[:length] != other[:length])
    return int(unequal[0]) if unequal.size else length
