"""What a step is, as plain data: the only thing that crosses from the planner to a worker and back.

Rank 0 plans, ranks execute (DESIGN: one planner). Both records hold integers, floats, strings and tuples
(and arrays of integers) alone, so that they can be pickled, digested and compared; a worker keeps no scheduling
state of its own. The records of a row are named tuples: 64 of each are made in every step.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from intaglio.errors import WorkerError


class SampleSpec(NamedTuple):
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


class RowPlan(NamedTuple):
    """One request's part of a step: `tokens` are computed at positions start, start+1, ...

    context_len   tokens whose KV is already in the cache (equals start with a cache; 0 without one)
    block_tables  one sequence of block ids per pool group; block i holds positions [i*block_tokens, (i+1)*block_tokens).
                  Empty without a KV cache. Never changed once planned.
    generations   the blocks' generations at planning time, same shape as block_tables
    logit_rows    which of the row's own queries (0-based) need logits; empty for a non-final prefill chunk
    phase         "prefill" or "decode", the phase of the request and not of the kernel
    draft         proposed tokens among `tokens` that are to be verified (speculation; () otherwise)
    want_logits   return the raw fp32 logits of `logit_rows` in the result (tests, equivalence phase)
    table_digest  see TableDigest; b"" where the planner kept none
    """

    request_id: str
    tokens: tuple[int, ...]
    start: int
    context_len: int
    block_tables: tuple[Sequence[int], ...]
    generations: tuple[Sequence[int], ...]
    logit_rows: tuple[int, ...]
    phase: str
    sample: SampleSpec | None = None
    draft: tuple[int, ...] = ()
    want_logits: bool = False
    table_digest: bytes = b""


class TableDigest:
    """sha256 over a request's blocks and generations in the order they were appended, kept up block by block.

    A table is hashed when it grows instead of in every step: the plan's digest takes only `value`. Any split of
    the same table into pieces gives the same value.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.value = self._hash.digest()

    def append(self, blocks: Sequence[Sequence[int]], generations: Sequence[Sequence[int]]) -> None:
        """New blocks and their generations, per pool group (each group gets equally many)."""
        groups = len(blocks)
        mixed = array("q", bytes(16 * groups * len(blocks[0]) if groups else 0))
        for group in range(groups):
            mixed[2 * group :: 2 * groups] = array("q", blocks[group])
            mixed[2 * group + 1 :: 2 * groups] = array("q", generations[group])
        self._hash.update(mixed.tobytes())
        self.value = self._hash.digest()

    @classmethod
    def of(cls, blocks: Sequence[Sequence[int]], generations: Sequence[Sequence[int]]) -> bytes:
        """The value for a whole table."""
        digest = cls()
        if blocks:
            digest.append(blocks, generations)
        return digest.value


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
    """One engine step. Rows are ordered by request id.

    moves: block copies, executed in order before the rows.
    Every rank echoes `digest()`, which covers all of the plan, its block tables by their running digests. A rank
    that received the plan over a wire calls `check_tables` before it computes.
    """

    step: int
    rows: tuple[RowPlan, ...]
    use_cache: bool
    moves: tuple[BlockMove, ...] = ()
    _known: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[StepPlan], tuple[Any, ...]]:
        # What was digested here says nothing of what arrives elsewhere, so it stays here.
        return StepPlan, (self.step, self.rows, self.use_cache, self.moves)

    def digest(self) -> str:
        """sha256 over the plan (128-bit prefix in hex), computed once per plan and process."""
        if not self._known:
            self._known.append(hashlib.sha256(b"".join(self._canonical())).hexdigest()[:32])
        return self._known[0]

    def check_tables(self) -> None:
        """Raise WorkerError unless every row's block tables are what its `table_digest` says."""
        for row in self.rows:
            if row.table_digest != TableDigest.of(row.block_tables, row.generations):
                raise WorkerError(f"step {self.step}: the block tables of '{row.request_id}' arrived changed")

    def _canonical(self) -> Iterable[bytes]:
        """Numbers as fixed-size integers, each variable part after its length. Lists first: they grow fastest."""
        numbers: list[int] = [self.step, self.use_cache, len(self.rows)]
        names: list[str] = []
        tables: list[bytes] = []
        floats: list[float] = []
        seeds: list[int] = []
        for name, tokens, start, context, _, _, logits, phase, spec, draft, wanted, table in self.rows:
            names.append(name)
            tables.append(table)
            numbers += (len(name), len(table), start, context, phase == "decode", wanted)
            numbers += (len(tokens), len(logits), len(draft), spec is not None)
            numbers += tokens
            numbers += logits
            numbers += draft
            if spec is None:
                continue
            heat, top_k, top_p, min_p, penalty, seed, sample, position, logprobs, history = spec
            numbers += (top_k, sample, position, -1 if logprobs is None else logprobs, len(history))
            numbers += history
            floats += (heat, top_p, min_p, penalty)
            seeds.append(seed)
        yield array("q", numbers).tobytes()
        yield array("d", floats).tobytes()
        yield array("Q", seeds).tobytes()
        yield "".join(names).encode()
        yield from tables
        if self.moves:
            yield repr(self.moves).encode()


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
