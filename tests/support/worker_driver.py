"""Drives a worker by hand-made step plans: one or several sequences, cached or not, in any chunking.

Every plan that was executed is counted, so that a test can assert the work that was really done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from intaglio.cluster.worker import Worker
from intaglio.config import from_flat
from intaglio.intake.step_plan import RowPlan, RowResult, SampleSpec, StepPlan, StepResult


def make_worker(folder: Path, *, blocks: int = 64, **flat: object) -> Worker:
    """A one-thread worker on `folder`. Keys of `flat` are configuration paths with `__` for the dot."""
    values = {"model": str(folder), "threads.count": 1, "dtype": "fp32"}
    values |= {key.replace("__", "."): value for key, value in flat.items()}
    config = from_flat(values)
    worker = Worker(config, folder)
    if config.kv_cache.enabled:
        worker.configure_kv(blocks)
    return worker


@dataclass
class Driver:
    """One sequence per block table. `steps`, `tokens` and `kv_written` count the work done."""

    worker: Worker
    block_tokens: int = 16
    generation: int = 1
    steps: int = 0
    tokens: int = 0
    kv_written: int = 0
    results: list[StepResult] = field(default_factory=list)

    def execute(self, rows: Sequence[RowPlan], *, cache: bool) -> tuple[RowResult, ...]:
        """One step of these rows, ordered by request id as a planner orders them."""
        ordered = tuple(sorted(rows, key=lambda row: row.request_id))
        plan = StepPlan(self.steps, ordered, cache)
        result = self.worker.execute(plan)
        if result.digest != plan.digest() or result.step != plan.step:
            raise AssertionError("the worker answered another plan")
        self.steps += 1
        self.tokens += result.tokens_computed
        self.kv_written += result.kv_bytes_written
        self.results.append(result)
        return result.rows

    def row(
        self,
        request_id: str,
        tokens: Sequence[int],
        start: int = 0,
        table: Sequence[int] | None = None,
        *,
        sample: SampleSpec | None = None,
        logit_rows: Sequence[int] | None = None,
        want_logits: bool = True,
    ) -> RowPlan:
        """A row of `tokens` at `start`; with a block table it is cached. All queries' logits by default."""
        rows = range(len(tokens)) if logit_rows is None else logit_rows
        return RowPlan(
            request_id=request_id,
            tokens=tuple(tokens),
            start=start,
            context_len=0 if table is None else start,
            block_tables=() if table is None else (tuple(table),),
            generations=() if table is None else ((self.generation,) * len(table),),
            logit_rows=tuple(rows),
            phase="decode" if len(tokens) == 1 else "prefill",
            sample=sample,
            want_logits=want_logits,
        )

    def uncached_logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits [n, vocab] of all tokens in one step without a cache."""
        (result,) = self.execute([self.row("only", tokens)], cache=False)
        return _logits(result)

    def cached_logits(self, tokens: Sequence[int], chunks: Sequence[int], table: Sequence[int]) -> np.ndarray:
        """Logits of all tokens, computed through the cache in the given chunk sizes."""
        parts, start = [], 0
        for size in chunks:
            part = tokens[start : start + size]
            (result,) = self.execute([self.row("only", part, start, table)], cache=True)
            parts.append(_logits(result))
            start += size
        if start != len(tokens):
            raise AssertionError(f"chunks {chunks} do not make up {len(tokens)} tokens")
        return np.concatenate(parts)

    def greedy(
        self, prompt: Sequence[int], new: int, *, table: Sequence[int] | None = None, name: str = "only"
    ) -> tuple[list[int], np.ndarray]:
        """Greedy tokens and the logits each was chosen from, with the cache if a table is given."""
        tokens, logits = list(prompt), []
        for _ in range(new):
            start = len(prompt) + len(logits) - 1 if table is not None and logits else 0
            part = tokens[start:]
            spec = SampleSpec(position=len(tokens))
            row = self.row(name, part, start, table, sample=spec, logit_rows=[len(part) - 1])
            (result,) = self.execute([row], cache=table is not None)
            if result.error:
                raise AssertionError(result.error)
            tokens.append(result.tokens[0])
            logits.append(_logits(result)[0])
        return tokens[len(prompt) :], np.stack(logits)


def split(total: int, chunk: int) -> list[int]:
    """`total` cut into chunks of `chunk`, the last one shorter where it must be."""
    whole, rest = divmod(total, chunk)
    return [chunk] * whole + ([rest] if rest else [])


def _logits(result: RowResult) -> np.ndarray:
    if result.error or result.logits is None:
        raise AssertionError(result.error or "no logits came back")
    return result.logits
