"""Logits of given tokens: a model reads a text and says at every token what it expects next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType

import numpy as np

from intaglio import loading
from intaglio.config import EngineConfig
from intaglio.errors import ConfigError, WorkerError
from intaglio.intake.step_plan import RowPlan, StepPlan

CHUNK = 32


class Scorer:
    """One loaded configuration that reads sequences one after another, `chunk` tokens a step.

    With a KV cache every chunk reads what earlier ones stored, in the store's own format; without one each
    sequence is a single step. No request is scheduled and no token is sampled. Raises what loading raises.
    """

    def __init__(self, config: EngineConfig, *, longest: int, chunk: int = CHUNK) -> None:
        self._config = config.validate()
        self._loaded = loading.load(config)
        self.tokenizer = self._loaded.codec
        self.facts = self._loaded.facts
        self._chunk = chunk
        self._longest = longest
        self._step = 0
        try:
            limit = loading.max_model_len(config, self.facts)
            if not 1 <= longest <= limit:
                raise ConfigError(
                    f"sequences of {longest} tokens; the model reads 1 to {limit}", field="window"
                )
            self._blocks = self._reserve()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def effective_config(self) -> dict[str, bool | int | float | str | None]:
        """What really runs; see Engine.effective_config."""
        return loading.effective(self._config, self._loaded, self._blocks)

    def close(self) -> None:
        """Let the workers go."""
        self._loaded.runner.close()

    def score(self, sequence: Sequence[int]) -> Iterator[np.ndarray]:
        """fp32 logits [tokens of a chunk, vocab], chunk by chunk: row i is the prediction after token i.

        Raises WorkerError where the model cannot compute a token.
        """
        if not 1 <= len(sequence) <= self._longest:
            raise ConfigError(
                f"a sequence of {len(sequence)} tokens; this scorer reads 1 to {self._longest}",
                field="window",
            )
        self._generation = self._step + 1
        # Without a cache nothing is left for a second piece to continue: all at once, told in the same pieces.
        whole = None if self._blocks else self._run(tuple(sequence), 0)
        for start in range(0, len(sequence), self._chunk):
            piece = slice(start, start + self._chunk)
            yield self._run(tuple(sequence[piece]), start) if whole is None else whole[piece]

    def _reserve(self) -> int:
        if not self._config.kv_cache.enabled:
            return 0
        blocks = -(-self._longest // self._config.kv_cache.block_tokens)
        self._loaded.runner.configure_kv(blocks)
        return blocks

    def _run(self, tokens: tuple[int, ...], start: int) -> np.ndarray:
        table = tuple(range(self._blocks))
        self._step += 1
        row = RowPlan(
            request_id="score",
            tokens=tokens,
            start=start,
            context_len=start,
            block_tables=(table,) if table else (),
            generations=((self._generation,) * len(table),) if table else (),
            logit_rows=tuple(range(len(tokens))),
            phase="prefill",
            want_logits=True,
        )
        result = self._loaded.runner.execute(StepPlan(self._step, (row,), bool(table)))
        found = result.rows[0]
        if found.error or found.logits is None:
            raise WorkerError(f"tokens at {start} could not be scored: {found.error or 'no logits'}")
        return found.logits
