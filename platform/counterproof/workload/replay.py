"""A trace becomes requests: its times, its lengths and its shared prefixes, filled with real text.

A hash id stands for a block of 512 prompt tokens; here it becomes a block of real text that belongs to the id, so
that two requests share exactly the blocks that their rows share. `length_scale` shrinks blocks and lengths alike,
for models whose context is shorter than the trace's prompts; shared blocks stay shared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from counterproof.errors import InputError
from counterproof.plan.schema import WorkloadConfig
from counterproof.workload import arrivals, corpus, traces
from counterproof.workload.traces import TraceRow

OWN_TOKENS = 8
TRIES = 100


@dataclass(frozen=True)
class Replayed:
    """One request of the replay."""

    token_ids: tuple[int, ...]
    max_new_tokens: int
    arrival_ns: int


@dataclass(frozen=True)
class Replay:
    """`made_unique`: rows whose prompt an earlier row had already; their last tokens were made their own."""

    requests: tuple[Replayed, ...]
    made_unique: int


def read_trace(config: WorkloadConfig) -> list[TraceRow]:
    """The `config.requests` first rows of the trace. Raises InputError when it has fewer."""
    if config.trace is None:
        raise InputError("workload.trace is not set", details=["name a trace file"])
    path = traces.locate(config.trace)
    rows = traces.read(path, config.trace_format, config.requests)
    if len(rows) < config.requests:
        raise InputError(f"{path.name} has {len(rows)} rows, workload.requests is {config.requests}")
    return rows


def replay(
    rows: list[TraceRow],
    config: WorkloadConfig,
    encode: Callable[[str], list[int]],
    seed: str,
    seen: set[tuple[int, ...]],
) -> Replay:
    """The rows as requests whose text is drawn by `seed`: another seed, other text of the same structure.

    seen  prompts that other blocks have; none is made again, and the new ones are added

    Raises InputError for rows that the workload's limits do not admit: nothing is cut short silently.
    """
    size = max(1, round(traces.BLOCK_TOKENS * config.length_scale))
    blocks = corpus.Blocks(encode, config.language, seed, size)
    start = tuple(corpus.beginning(encode))
    lengths = [_scaled(row, config.length_scale) for row in rows]
    _check_limits(config, lengths)
    times = arrivals.scaled([row.time_ns for row in rows], config.time_scale)
    result, repeated = [], 0
    for number, (row, (prompt, output)) in enumerate(zip(rows, lengths, strict=True)):
        shared = _shared(row, prompt, blocks, start)
        ids = shared if row.hash_ids and shared not in seen else None
        if ids is None:
            repeated += bool(row.hash_ids)
            own = min(OWN_TOKENS, prompt) if row.hash_ids else prompt - len(start)
            ids = _unlike(shared[: prompt - own], f"row {number}", own, blocks, seen)
        seen.add(ids)
        result.append(Replayed(ids, output, times[number]))
    return Replay(tuple(result), repeated)


def _shared(row: TraceRow, length: int, blocks: corpus.Blocks, start: tuple[int, ...]) -> tuple[int, ...]:
    """The first `length` tokens of the row's blocks; only the beginning where the trace kept no ids."""
    ids = list(start)
    for block in row.hash_ids:
        ids += blocks.block(block)
    return tuple(ids[:length])


def _unlike(
    prefix: tuple[int, ...], name: str, size: int, blocks: corpus.Blocks, seen: set[tuple[int, ...]]
) -> tuple[int, ...]:
    """The prefix and `size` tokens of text such that no other prompt is equal."""
    for attempt in range(TRIES):
        ids = (*prefix, *blocks.window(f"{name}/{attempt}", size))
        if ids not in seen:
            return ids
    raise InputError(
        f"{name} of the trace is too short to be unlike the others: {len(prefix) + size} tokens",
        details=["raise workload.length_scale, or ask for fewer requests or blocks"],
    )


def _scaled(row: TraceRow, scale: float) -> tuple[int, int]:
    return max(1, math.ceil(row.prompt_tokens * scale)), max(1, math.ceil(row.output_tokens * scale))


def _check_limits(config: WorkloadConfig, lengths: list[tuple[int, int]]) -> None:
    for name, limit, values in (
        ("prompt_tokens", config.prompt_tokens, [prompt for prompt, _ in lengths]),
        ("max_new_tokens", config.max_new_tokens, [output for _, output in lengths]),
    ):
        over = [value for value in values if value > limit]
        if over:
            raise InputError(
                f"{len(over)} rows of the trace exceed workload.{name} = {limit}, the longest with {max(over)}",
                details=[f"raise workload.{name}, or lower workload.length_scale"],
            )
