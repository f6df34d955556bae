"""What a step is, as plain data: the only thing that crosses from the planner to a worker and back.

Rank 0 plans, ranks execute (DESIGN: one planner). Both records hold integers, floats, strings and tuples
alone, so that they can be pickled, digested and compared; a worker keeps no scheduling state of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """How to choose a token from one logit row. `history` is only filled when a penalty needs it.

    `seed` and `sample_index` key the counter-based random numbers together with the absolute output
    `position`, so neither the batch nor the engine's own ids can change a draw.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    sample_index: int = 0
    position: int = 0
    logprobs: int | None = None
    history: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowPlan:
    """One request's part of a step: `tokens` are computed at positions start, start+1, ...

    context_len   tokens whose KV is already in the cache (equals start with a cache; 0 without one)
    block_tables  one block-id tuple per pool group; block i holds positions [i*block_tokens, (i+1)*block_tokens).
                  Empty without a KV cache.
    generations   the blocks' generations at planning time, same shape as block_tables
    logit_rows    which of the row's own queries (0-based) need logits; empty for a non-final prefill chunk
    draft         proposed tokens among `tokens` that are to be verified (speculation; () otherwise)
    phase         "prefill" or "decode", the phase of the request and not of the kernel
    want_logits   return the raw fp32 logits of `logit_rows` in the result (tests, equivalence phase)
    """

    request_id: str
    tokens: tuple[int, ...]
    start: int
    context_len: int
    block_tables: tuple[tuple[int, ...], ...]
    generations: tuple[tuple[int, ...], ...]
    logit_rows: tuple[int, ...]
    phase: str
    sample: SampleSpec | None = None
    draft: tuple[int, ...] = ()
    want_logits: bool = False


@dataclass(frozen=True, slots=True)
class BlockMove:
    """One block's bytes, over all layers of its group, to or from outside the pool; done before the step's rows.

    kind        "copy_out" (to host memory), "copy_in" (back), "save" (to a file), "load" (from one)
    block       the block read or filled; `generation` is what it must hold (read) or will hold (filled)
    slot        host slot of a copy; index of the block's bytes within the file otherwise
    checksum    of the bytes that must arrive (copy_in, load); 0 for what is read out
    path        the file of a save or load, "" for a copy
    """

    kind: str
    group: int
    block: int
    generation: int
    slot: int
    checksum: int = 0
    path: str = ""


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What became of one move: bytes moved, their checksum (zlib.crc32), and what went wrong or ""."""

    nbytes: int = 0
    checksum: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One engine step. Rows are ordered by request id; `digest()` lets every rank check it got this plan.

    moves: block copies, executed in order before the rows.
    """

    step: int
    rows: tuple[RowPlan, ...]
    use_cache: bool
    moves: tuple[BlockMove, ...] = ()

    def digest(self) -> str:
        """sha256 over the canonical text of the plan (128-bit prefix in hex)."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a worker says of one row: 0 to k+1 tokens to commit, oldest first.

    logprobs      per committed token, log p(token) under the unmodified model distribution
    top_logprobs  per committed token, ((token, logprob), ...) best first, when asked for
    margins       per committed token, raw logit of the best token minus that of the second best
    logits        fp32 array [len(logit_rows), vocab] when the plan wanted it
    """

    request_id: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    margins: tuple[float, ...] = ()
    logits: np.ndarray | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """A worker's answer. Times are nanoseconds on the one monotonic clock (time.perf_counter_ns).

    spans: (phase, start_ns, duration_ns) of the worker's own stages, phases "move", "forward" and "sample".
    moved: what became of the plan's moves, in their order.
    kv_bytes_written: bytes of KV this step stored; flops: floating-point operations of the forward pass.
    """

    step: int
    digest: str
    rows: tuple[RowResult, ...]
    spans: tuple[tuple[str, int, int], ...] = ()
    tokens_computed: int = 0
    kv_bytes_written: int = 0
    kv_bytes_read: int = 0
    flops: int = 0
    events: tuple[tuple[str, str], ...] = field(default=())
    moved: tuple[MoveResult, ...] = ()
