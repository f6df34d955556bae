"""One admitted request while it lives: its tokens, how far they are computed, and the blocks that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from intaglio.intake.request import SamplingParams
from intaglio.intake.step_plan import RowPlan, SampleSpec

Tables = tuple[tuple[int, ...], ...]


class Status(Enum):
    """Where a request is in its life. FINISHED is final."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one request. Only the scheduler changes it.

    arrival      position in the order of arrival: the earlier one has the older right
    tokens       prompt and output so far
    computed     how many of `tokens` have their KV in the cache (0 without a cache)
    last_step    the last step that had a row of this request
    in_flight    the step that is running with a row of this request, or None
    """

    request_id: str
    arrival: int
    prompt_len: int
    tokens: list[int]
    params: SamplingParams
    seed: int
    want_logits: bool = False
    computed: int = 0
    block_tables: Tables = ()
    generations: Tables = ()
    status: Status = Status.WAITING
    last_step: int = -1
    in_flight: int | None = None
    preemptions: int = 0
    tokens_computed: int = 0
    cached_tokens: int = 0

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

    def grow(self, tables: Tables, generations: Tables) -> None:
        """Append newly allocated blocks to the block tables."""
        if not self.block_tables:
            self.block_tables, self.generations = tables, generations
            return
        self.block_tables = tuple(old + new for old, new in zip(self.block_tables, tables))
        self.generations = tuple(old + new for old, new in zip(self.generations, generations))

    def row(self, count: int, *, use_cache: bool) -> RowPlan:
        """The row that computes the next `count` tokens; it asks for logits if they are the last ones."""
        start = self.computed if use_cache else 0
        final = start + count == len(self.tokens)
        return RowPlan(
            request_id=self.request_id,
            tokens=tuple(self.tokens[start : start + count]),
            start=start,
            context_len=start,
            block_tables=self.block_tables if use_cache else (),
            generations=self.generations if use_cache else (),
            logit_rows=(count - 1,) if final else (),
            phase=self.phase,
            sample=self._sample_spec() if final else None,
            want_logits=self.want_logits and final,
        )

    def id_stop(self, eos_token_ids: frozenset[int], max_len: int | None) -> str | None:
        """Why the last token ends the request, as far as token ids and lengths tell, or None.

        max_len: most tokens that can be held; beyond it the request cannot go on ("length" as well).
        """
        last, params = self.tokens[-1], self.params
        if last in params.stop_token_ids or (last in eos_token_ids and not params.ignore_eos):
            return "stop"
        if self.output_len >= params.max_tokens or (max_len is not None and len(self.tokens) > max_len):
            return "length"
        return None

    def _sample_spec(self) -> SampleSpec:
        p = self.params
        return SampleSpec(
            temperature=p.temperature,
            top_k=p.top_k,
            top_p=p.top_p,
            min_p=p.min_p,
            repetition_penalty=p.repetition_penalty,
            seed=self.seed,
            position=len(self.tokens),
            logprobs=p.logprobs,
            history=tuple(self.tokens) if p.repetition_penalty != 1.0 else (),
        )
