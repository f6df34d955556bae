"""One admitted request while it lives: its tokens, how far they are computed, and the blocks that hold them."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from intaglio.intake.request import SamplingParams
from intaglio.intake.step_plan import RowPlan, SampleSpec, TableDigest
from intaglio.state.block_key import KeyChain

if TYPE_CHECKING:
    from intaglio.state.context_cache import ContextEntry

# Per pool group, whole numbers. An array is replaced when it grows and never changed, so a plan may keep it.
Tables = tuple["array[int]", ...]


class Status(Enum):
    """Where a request is in its life. FINISHED is final."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one request. Only the scheduler changes it.

    arrival        position in the order of arrival: the earlier one has the older right
    tokens         prompt and output so far
    tenant         whose request it is ("" = the only tenant)
    computed       how many of `tokens` have their KV in the cache (0 without a cache)
    last_step      the last step that had a row of this request
    in_flight      the step that is running with a row of this request, or None
    cached_tokens  prompt tokens that never had to be computed because cached blocks held them
    lost           tokens whose KV was given up by a preemption and not yet found or computed again
    deferrals      steps for which its start was put off because another request computed what it needs
    chain          the keys of its full blocks, None without a prefix cache
    context        the context whose tokens its prompt begins with, or None
    capture        told when it ends, before its blocks are released
    """

    request_id: str
    arrival: int
    prompt_len: int
    tokens: list[int]
    params: SamplingParams
    seed: int
    want_logits: bool = False
    tenant: str = ""
    computed: int = 0
    block_tables: Tables = ()
    generations: Tables = ()
    table_digest: TableDigest = field(default_factory=TableDigest)
    status: Status = Status.WAITING
    last_step: int = -1
    in_flight: int | None = None
    preemptions: int = 0
    tokens_computed: int = 0
    cached_tokens: int = 0
    lost: int = 0
    deferrals: int = 0
    chain: KeyChain | None = None
    context: ContextEntry | None = None
    capture: Callable[[Sequence], None] | None = None

    @property
    def output_len(self) -> int:
        """Number of output tokens so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def remaining(self) -> int:
        """Tokens still to be computed before the next one can be chosen."""
        return len(self.tokens) - self.computed

    @property
    def blocks_held(self) -> int:
        """Blocks in each group's table."""
        return len(self.block_tables[0]) if self.block_tables else 0

    @property
    def phase(self) -> str:
        """Of the request, not of the kernel: recomputation after the first output token is decode."""
        return "decode" if self.output_len else "prefill"

    def grow(self, tables: Items[Items[int]], generations: Items[Items[int]]) -> None:
        """Append blocks, newly allocated or shared, to the block tables."""
        self.table_digest.append(tables, generations)
        blocks = tuple(array("i", table) for table in tables)
        numbers = tuple(array("q", own) for own in generations)
        if self.block_tables:
            blocks = tuple(old + new for old, new in zip(self.block_tables, blocks))
            numbers = tuple(old + new for old, new in zip(self.generations, numbers))
        self.block_tables, self.generations = blocks, numbers

    def drop_blocks(self) -> None:
        """Forget the block tables, which somebody else has released."""
        self.block_tables = self.generations = ()
        self.table_digest = TableDigest()

    def row(self, count: int, *, use_cache: bool) -> RowPlan:
        """The row that computes the next `count` tokens; it asks for logits if they are the last ones."""
        tokens = self.tokens
        start = self.computed if use_cache else 0
        end = start + count
        final = end == len(tokens)
        return RowPlan(
            self.request_id,
            (tokens[start],) if count == 1 else tuple(tokens[start:end]),
            start,
            start,
            self.block_tables if use_cache else (),
            self.generations if use_cache else (),
            (count - 1,) if final else (),
            "prefill" if len(tokens) == self.prompt_len else "decode",
            self._sample_spec() if final else None,
            (),
            self.want_logits and final,
            self.table_digest.value if use_cache else b"",
        )

    def id_stop(self, eos_token_ids: frozenset[int], max_len: int | None) -> str | None:
        """Why the last token ends the request, as far as token ids and lengths tell, or None.

        max_len: most tokens that can be held; beyond it the request cannot go on ("length" as well).
        """
        last, params, count = self.tokens[-1], self.params, len(self.tokens)
        if last in params.stop_token_ids or (last in eos_token_ids and not params.ignore_eos):
            return "stop"
        if count - self.prompt_len >= params.max_tokens or (max_len is not None and count > max_len):
            return "length"
        return None

    def _sample_spec(self) -> SampleSpec:
        p = self.params
        return SampleSpec(
            p.temperature,
            p.top_k,
            p.top_p,
            p.min_p,
            p.repetition_penalty,
            self.seed,
            0,
            len(self.tokens),
            p.logprobs,
            tuple(self.tokens) if p.repetition_penalty != 1.0 else (),
        )
