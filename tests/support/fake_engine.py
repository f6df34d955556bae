"""A stand-in for the model: the next token is a hash of the tokens that the paged store really holds.

A wrong block table, a block reused too early or a lost token therefore changes the text, as it would with a
model, but in microseconds and without torch.
"""

from __future__ import annotations

import codecs
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from intaglio.config import EngineConfig
from intaglio.engine import Engine
from intaglio.errors import PromptEncodingError
from intaglio.intake.request import SamplingParams
from intaglio.intake.step_plan import RowPlan, RowResult, SampleSpec, StepPlan, StepResult
from intaglio.loading import Loaded, ModelFacts
from intaglio.threads import Threads

VOCAB = 257
EOS = 256
BYTES_PER_TOKEN = (8, 24)


def next_token(tokens: Sequence[int], spec: SampleSpec) -> int:
    """Mostly a small letter, sometimes a piece of a two-byte character, rarely the end token."""
    key = (
        f"{list(tokens)}|{spec.temperature}|{spec.seed}|{spec.position}"
        if spec.temperature
        else f"{list(tokens)}"
    )
    digest = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    kind = digest % 64
    if kind == 0:
        return EOS
    if kind < 6:
        return (0xC3, 0xA4)[digest >> 8 & 1]
    return 97 + (digest >> 8) % 8


def reference(
    prompt: Sequence[int], params: SamplingParams, *, seed: int = 0, max_len: int | None = None
) -> tuple[list[int], str]:
    """What the request must yield, computed one token after the other without engine, cache or batch.

    Stop strings are looked for in the whole text after each token. Returns token ids and finish reason.
    """
    tokens, out = list(prompt), []
    while True:
        spec = SampleSpec(temperature=params.temperature, seed=seed, position=len(tokens))
        token = next_token(tokens, spec)
        tokens.append(token)
        out.append(token)
        if token in params.stop_token_ids or (token == EOS and not params.ignore_eos):
            return out, "stop"
        whole = decoded([t for t in out if t != EOS])
        if any(stop in whole for stop in params.stop):
            return out, "stop"
        if len(out) >= params.max_tokens or (max_len is not None and len(tokens) > max_len):
            return out, "length"


def decoded(ids: Sequence[int]) -> str:
    """The text of byte tokens, unfinished characters as U+FFFD."""
    return bytes(ids).decode("utf-8", errors="replace")


class ByteStream:
    """One byte per token; the end token is no text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return "" if token_id == EOS else self._decoder.decode(bytes([token_id]))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteCodec:
    """A tokenizer whose tokens are the bytes of UTF-8."""

    eos_token_ids = (EOS,)

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        try:
            return list(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise PromptEncodingError(str(error), field="prompt") from error

    def unencodable(self, text: str) -> str:
        return ""

    def stream(self, prompt_ids: Sequence[int]) -> ByteStream:
        return ByteStream()


class HashRunner:
    """Keeps tokens in paged stores, one per pool group, exactly as a plan tells it to.

    during   called inside each step, while it runs
    fail     step numbers that raise; row_error: request ids whose row is refused
    """

    def __init__(self, block_tokens: int, *, max_positions: int = 4096) -> None:
        self.block_tokens = block_tokens
        self.max_positions = max_positions
        self.during: Callable[[StepPlan], None] | None = None
        self.fail: set[int] = set()
        self.row_error: set[str] = set()
        self.plans: list[StepPlan] = []
        self.closed = False
        self._stores: list[list[list[int | None]]] = []
        self._generations: list[list[int]] = []

    def describe(self) -> Mapping[str, Any]:
        return {
            "architecture": "hash",
            "vocab_size": VOCAB,
            "max_positions": self.max_positions,
            "parameters": 0,
            "weight_bytes": 0,
            "kernel_path": "python",
            "kv_format": "fp32",
            "kv_bytes_per_token": BYTES_PER_TOKEN,
        }

    def configure_kv(self, blocks: int) -> None:
        empty = [None] * self.block_tokens
        self._stores = [[list(empty) for _ in range(blocks)] for _ in BYTES_PER_TOKEN]
        self._generations = [[0] * blocks for _ in BYTES_PER_TOKEN]

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        started = time.perf_counter_ns()
        if self.during is not None:
            self.during(plan)
        if plan.step in self.fail:
            raise RuntimeError("planned failure")
        ids = [row.request_id for row in plan.rows]
        assert ids == sorted(ids)
        assert len(set(ids)) == len(ids)
        assert ids or plan.moves
        self._check_disjoint(plan)
        rows = tuple(self._row(row, plan.use_cache) for row in plan.rows)
        count = sum(len(row.tokens) for row in plan.rows)
        now = time.perf_counter_ns()
        took = (now - started) // 4  # let a quarter of it have been sampling
        return StepResult(
            step=plan.step,
            digest=plan.digest(),
            rows=rows,
            spans=(("forward", started, now - started - took), ("sample", now - took, took)),
            tokens_computed=count,
            kv_bytes_written=count * sum(BYTES_PER_TOKEN) if plan.use_cache else 0,
        )

    def close(self) -> None:
        self.closed = True

    def _check_disjoint(self, plan: StepPlan) -> None:
        """What a row writes to, nobody else names; what is shared is full and computed before this step."""
        for group in range(len(BYTES_PER_TOKEN) if plan.use_cache else 0):
            named = Counter(block for row in plan.rows for block in row.block_tables[group])
            for row in plan.rows:
                own = row.block_tables[group][row.start // self.block_tokens :]
                assert all(named[block] == 1 for block in own), "a block that is written has two owners"

    def _row(self, row: RowPlan, use_cache: bool) -> RowResult:
        if row.request_id in self.row_error:
            return RowResult(row.request_id, error="planned row error")
        if not use_cache:
            assert (row.start, row.context_len, row.block_tables) == (0, 0, ())
            held = [list(row.tokens)]
        else:
            assert row.context_len == row.start
            held = [self._write_and_read(group, row) for group in range(len(self._stores))]
        assert all(tokens == held[0] for tokens in held)
        if row.sample is None:
            assert row.logit_rows == ()
            return RowResult(row.request_id)
        assert row.logit_rows == (len(row.tokens) - 1,)
        token = next_token(held[0], row.sample)
        return RowResult(row.request_id, tokens=(token,), logprobs=(-0.5,), margins=(1.0,))

    def _write_and_read(self, group: int, row: RowPlan) -> list[int]:
        store, known = self._stores[group], self._generations[group]
        table, generations = row.block_tables[group], row.generations[group]
        for block, generation in zip(table, generations, strict=True):
            assert known[block] <= generation, "a stale block table"
            if known[block] < generation:
                known[block] = generation
                store[block] = [None] * self.block_tokens  # a reused block holds nothing of its past
        for position, token in enumerate(row.tokens, start=row.start):
            store[table[position // self.block_tokens]][position % self.block_tokens] = token
        end = row.start + len(row.tokens)
        read = [store[table[p // self.block_tokens]][p % self.block_tokens] for p in range(end)]
        assert None not in read, "a token is read that was never written"
        return [token for token in read if token is not None]


def make_engine(config: EngineConfig, runner: HashRunner | None = None) -> Engine:
    """An engine on a HashRunner (reachable as `engine.fake`)."""
    fake = runner or HashRunner(config.kv_cache.block_tokens)
    facts = ModelFacts.read(fake.describe())
    engine = Engine(
        config, loaded=Loaded(fake, ByteCodec(), facts, dict, Threads(1, config.threads.wait_policy))
    )
    engine.fake = fake  # type: ignore[attr-defined]
    return engine
