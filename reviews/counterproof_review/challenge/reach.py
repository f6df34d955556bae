"""What a search can try with the engines that it has, and what it cannot: told in the report, never passed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterproof_review.challenge.space import Space

MAX_FILL = 16_384  # more tokens than this are not computed only to fill a cache


@dataclass(frozen=True)
class Reach:
    """longest        most tokens of a prompt and its output together
    least_outputs  fewest output tokens of a request: 2 where the metric is a time between tokens
    pool           tokens that the candidate's pool of KV blocks holds, 0 without one
    keeps          whether an arm keeps blocks of requests that have ended, so that its cache can be full
    """

    longest: int
    least_outputs: int
    pool: int = 0
    keeps: bool = False

    @property
    def fills(self) -> bool:
        """Whether a full cache can be made."""
        return self.keeps and 0 < self.pool <= MAX_FILL


def of(effective: Sequence[Mapping[str, Any]], least_outputs: int) -> Reach:
    """From what the engines of baseline and candidate say that they really run."""
    longest = [
        e["scheduler.max_model_len"] for e in effective if type(e.get("scheduler.max_model_len")) is int
    ]
    keeps = any(e.get("prefix_cache.enabled") is True for e in effective)
    pool = next((held for e in reversed(effective) if (held := _pool(e))), 0)
    return Reach(min(longest, default=512), least_outputs, pool, keeps)


def beyond(reach: Reach, space: Space) -> list[str]:
    """What was not tried because it cannot be, one line each."""
    slots = max((d.high for d in space.dimensions if d.name == "concurrency"), default=1)
    found = [
        f"more than {reach.longest} tokens of a prompt and its output together, and more than {slots:.0f} slots",
        "sampling: every request is greedy",
    ]
    if not reach.fills:
        why = (
            f"its pool holds {reach.pool} tokens" if reach.keeps else "no arm keeps blocks of ended requests"
        )
        found.append(f"a cache that is full of others' blocks: {why}")
    return found


def _pool(effective: Mapping[str, Any]) -> int:
    blocks, size = effective.get("kv_cache.blocks"), effective.get("kv_cache.block_tokens")
    if effective.get("kv_cache.enabled") is not True or type(blocks) is not int or type(size) is not int:
        return 0
    return blocks * size
