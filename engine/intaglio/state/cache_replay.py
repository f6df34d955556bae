"""What a prefix cache of a given size would have hit on a recorded trace: the block manager itself, without a model.

Traces are those of Mooncake (Qin et al. 2025, "Mooncake: trading more storage for less computation"): one JSON
object a line, whose `hash_ids` name the request's 512-token blocks; equal ids are equal blocks after equal ones.
Each id counts as one full block, the last one of a request too; only the mean ratio per request is over tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from intaglio.errors import TraceError
from intaglio.state.block_key import KeyChain
from intaglio.state.block_pool import PoolGroup
from intaglio.state.block_pools import BlockPools
from intaglio.state.prefix_cache import PrefixCache
from intaglio.telemetry import Counters

BLOCK_TOKENS = 512
_LARGEST = (1 << 31) - 1


class TraceRequest(NamedTuple):
    """One request of a trace: its blocks' ids, and its prompt's length in tokens."""

    ids: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """blocks: capacity. references: blocks that the requests asked for, of which `hits` were there and
    `unique` different. evictions: blocks given up. mean_request_ratio: mean over requests of the part of the
    prompt's tokens that were hit."""

    blocks: int
    requests: int
    references: int
    unique: int
    hits: int
    hit_ratio: float
    mean_request_ratio: float
    evictions: int

    def to_dict(self) -> dict[str, int | float]:
        """Plain values by name."""
        return asdict(self)


class CacheReplay:
    """A block pool with its prefix cache, to which requests come one at a time."""

    def __init__(self, blocks: int) -> None:
        self._counters = Counters()
        # A trace's block is one "token" here: its contents do not matter to the block manager.
        self._pools = BlockPools([PoolGroup("trace", blocks, 1, 0)])
        self._cache = PrefixCache(self._pools, self._counters)

    @property
    def evictions(self) -> int:
        """Blocks given up so far."""
        return self._counters["prefix_evicted_blocks"]

    def request(self, ids: Sequence[int]) -> int:
        """Serve one request from start to end. Returns how many of its leading blocks were there."""
        # What exceeds the whole pool would be computed and given up again, tail first.
        ids = ids[: self._pools.total]
        chain = KeyChain(b"trace", 1)
        chain.extend(ids, len(ids))
        found = self._cache.match(chain, len(ids))
        tables, generations = self._cache.take(chain, found)
        fresh = self._pools.allocate(len(ids) - len(found))
        table = [*(tables[0] if tables else ()), *fresh[0]]
        numbers = [*(generations[0] if generations else ()), *self._pools.generations(fresh)[0]]
        self._cache.commit(chain, "", [table], [numbers], len(ids))
        self._pools.release([table])
        self._cache.leave(chain)
        return len(found)

    def check_integrity(self) -> None:
        """Raise BlockPoolError unless every block is accounted for."""
        self._pools.check_integrity([])


def replay(requests: Sequence[TraceRequest], blocks: int | None) -> ReplayResult:
    """Serve a trace's requests in order. blocks None: room for everything.

    Raises TraceError when there is nothing to serve.
    """
    references = sum(len(request.ids) for request in requests)
    if not references:
        raise TraceError("the trace names no blocks; give one with hash_ids", field="trace")
    unique = len({block for request in requests for block in request.ids})
    # No more blocks than references are ever in use; an id after another predecessor is a block of its own.
    cache = CacheReplay(references if blocks is None else min(blocks, references))
    hits = [cache.request(request.ids) for request in requests]
    cache.check_integrity()
    ratios = [min(1.0, hit * BLOCK_TOKENS / request.tokens) for hit, request in zip(hits, requests)]
    return ReplayResult(
        blocks=unique if blocks is None else blocks,
        requests=len(requests),
        references=references,
        unique=unique,
        hits=sum(hits),
        hit_ratio=sum(hits) / references,
        mean_request_ratio=sum(ratios) / len(ratios),
        evictions=cache.evictions,
    )


def read_trace(path: Path, rows: int | None = None) -> list[TraceRequest]:
    """The trace's first `rows` requests. Raises TraceError naming the line that is wrong."""
    try:
        with path.open(encoding="utf-8") as lines:
            return list(_rows(lines, rows))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path}: {error}; give a JSON-lines file", field="trace") from error


def _rows(lines: Iterator[str], rows: int | None) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, start=1):
        if rows is not None and number > rows:
            return
        try:
            row: dict[str, Any] = json.loads(line)
            ids, tokens = row["hash_ids"], row.get("input_length")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TraceError(
                f"line {number} is no request with hash_ids: {error!r}; give a trace in Mooncake's format",
                field="trace",
            ) from error
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i <= _LARGEST for i in ids):
            raise TraceError(
                f"line {number}: hash_ids must be whole numbers of 0 to {_LARGEST}", field="trace"
            )
        if tokens is not None and (type(tokens) is not int or tokens < 1):
            raise TraceError(f"line {number}: input_length must be a whole number from 1", field="trace")
        yield TraceRequest(tuple(ids), tokens or BLOCK_TOKENS * max(1, len(ids)))
