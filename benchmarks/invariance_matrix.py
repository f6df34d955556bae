"""The invariance matrix on a real model: whatever way a request's KV came to be, the same bits.

    python -m benchmarks.invariance_matrix                        # SmolLM2, fp32 and bf16, plain and int8 KV
    python -m benchmarks.invariance_matrix --model tiny --formats auto,int8,int4,fp8

Three requests on one document are computed in eight ways (alone, in one batch, in chunks, after a prefix hit, by a
context's id, by the id of a context saved by another engine, preempted and recomputed, preempted and swapped) in
invariant mode. Every pair of ways has to agree in every token and every bit of every logit, and every way has to
prove by the engine's counters that it was really taken. Last comes the inverse: fast mode has to differ in at least
one way, or the equalities would prove nothing. The suite runs the same matrix on a tiny model in
tests/engine/invariance. Exit code 0 only if everything holds.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.intake.request import SamplingParams

COUNT, DOCUMENT_TOKENS, OWN, NEW, BLOCK = 3, 100, 7, 40, 16
STORED = DOCUMENT_TOKENS // BLOCK * BLOCK
EACH = DOCUMENT_TOKENS + OWN + NEW - 1
CHUNK = 13
# Two prompts fit with three blocks to spare, and each grows by three: one of them has to give way.
SMALL_POOL = 2 * -(-(DOCUMENT_TOKENS + OWN) // BLOCK) + 3
PARAMS = SamplingParams(max_tokens=NEW, ignore_eos=True)
LAST_ID = 500


class MatrixError(Exception):
    """A way that was not taken, or two that do not agree."""


def tokens(count: int, seed: int) -> list[int]:
    """Token ids that every model of the catalogue has."""
    return [int(i) for i in np.random.default_rng(seed).integers(3, LAST_ID, count)]


DOCUMENT = tokens(DOCUMENT_TOKENS, 1)
QUESTIONS = [tokens(OWN, 10 + i) for i in range(COUNT)]
PROMPTS = [DOCUMENT + question for question in QUESTIONS]


@dataclass(frozen=True)
class Result:
    """What one way gave: outputs in the requests' order, and the counters of the work done for them."""

    outputs: list[Any]
    counters: Mapping[str, int]
    bytes_per_token: int


class Ways:
    """The ways, each on engines of its own."""

    def __init__(self, fixed: Sequence[str], folder: Path) -> None:
        self._fixed = list(fixed)
        self._contexts = ("context_cache.enabled=true", f"context_cache.folder={folder}")

    def alone(self) -> Result:
        """One after the other, each prompt in one piece."""
        return self._run([], lambda e: [self._generate(e, [prompt])[0] for prompt in PROMPTS])

    def batch(self) -> Result:
        """All in the same steps."""
        return self._run([], lambda engine: self._generate(engine, PROMPTS))

    def chunk(self) -> Result:
        """Prompts in pieces."""
        return self._run([f"scheduler.prefill_chunk={CHUNK}"], lambda e: self._generate(e, PROMPTS))

    def prefix_hit(self) -> Result:
        """The document's blocks where an earlier request left them."""

        def work(engine: Engine) -> list[Any]:
            engine.generate([DOCUMENT], SamplingParams(max_tokens=1, ignore_eos=True))
            return self._generate(engine, PROMPTS)

        return self._run(["prefix_cache.enabled=true"], work)

    def context(self) -> Result:
        """The document by id."""

        def work(engine: Engine) -> list[Any]:
            return self._generate(engine, QUESTIONS, engine.contexts.create(DOCUMENT).id)

        return self._run(self._contexts, work)

    def restored(self) -> Result:
        """The document by id, saved by one engine and loaded by another."""
        with self._engine(self._contexts) as engine:
            saved = engine.contexts.create(DOCUMENT).id
        return self._run(self._contexts, lambda engine: self._generate(engine, QUESTIONS, saved))

    def recomputed(self) -> Result:
        """A pool too small for all: blocks are given up and computed again."""
        return self._run([f"kv_cache.blocks={SMALL_POOL}"], lambda e: self._generate(e, PROMPTS))

    def swapped(self) -> Result:
        """The same pool, and host memory for the blocks given up."""
        pool = [f"kv_cache.blocks={SMALL_POOL}", "host_tier.enabled=true"]
        return self._run(pool, lambda e: self._generate(e, PROMPTS))

    def _engine(self, more: Sequence[str]) -> Engine:
        return Engine(parse_overrides([*self._fixed, *more]))

    def _run(self, more: Sequence[str], work: Callable[[Engine], list[Any]]) -> Result:
        with self._engine(more) as engine:
            outputs = work(engine)
            price = engine.effective_config()["kv_cache.bytes_per_token"]
            return Result(outputs, dict(engine.counters()), int(price or 0))

    def _generate(self, engine: Engine, prompts: list[list[int]], context: str | None = None) -> list[Any]:
        return list(engine.generate(prompts, PARAMS, return_logits=True, context=context))


NAMES = ("alone", "batch", "chunk", "prefix_hit", "context", "restored", "recomputed", "swapped")


def check_work(name: str, found: Result) -> str:
    """Raises MatrixError where the counters do not show that the way was taken; returns what they show."""
    c = found.counters
    plain, rest = COUNT * EACH, COUNT * (EACH - STORED)
    chunks = -(-(DOCUMENT_TOKENS + OWN) // CHUNK)
    loaded = STORED * found.bytes_per_token
    # Per way: counters that must have exactly this value, and counters that must not be 0.
    exact: dict[str, dict[str, int]] = {
        "alone": {"tokens_computed": plain, "steps": COUNT * NEW},
        "batch": {"tokens_computed": plain, "steps": NEW},
        "chunk": {"tokens_computed": plain, "steps": chunks + NEW - 1},
        "prefix_hit": {"tokens_computed": DOCUMENT_TOKENS + rest, "prefix_hit_tokens": COUNT * STORED},
        "context": {
            "tokens_computed": STORED + rest,
            "context_hit_tokens": COUNT * STORED,
            "context_loads": 0,
        },
        "restored": {"tokens_computed": rest, "context_loads": 1, "context_load_bytes": loaded},
        "recomputed": {"tokens_computed": plain + c["tokens_recomputed"]},
        "swapped": {"tokens_computed": plain, "tokens_recomputed": 0, "swap_failures": 0},
    }
    moved = {"recomputed": ("preemptions", "tokens_recomputed"), "swapped": ("preemptions", "swap_in_blocks")}
    wrong = [f"{k} is {c[k]}, not {v}" for k, v in exact[name].items() if c[k] != v]
    wrong += [f"{key} is 0" for key in moved.get(name, ()) if not c[key]]
    if wrong:
        raise MatrixError(f"{name} was not taken: {'; '.join(wrong)}")
    shown = dict.fromkeys((*exact[name], *moved.get(name, ())))
    return ", ".join(f"{key} {c[key]:,}" for key in shown)


def differences(left: Result, right: Result) -> int:
    """How many of the requests differ in any token or any bit of any logit. Raises MatrixError for a failed one."""
    count = 0
    for ours, theirs in zip(left.outputs, right.outputs, strict=True):
        if ours.error or theirs.error or len(ours.logits) != NEW or len(theirs.logits) != NEW:
            raise MatrixError(f"a request failed: {ours.error or theirs.error}")
        same = ours.token_ids == theirs.token_ids and all(
            np.array_equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True)
        )
        count += not same
    return count


def run_matrix(fixed: Sequence[str], title: str) -> Result:
    """All ways and all pairs of one configuration. Raises MatrixError. Returns what `alone` gave."""
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as folder:
        ways = Ways([*fixed, "numerics.mode=invariant"], Path(folder))
        for name in NAMES:
            began = time.perf_counter()
            results[name] = getattr(ways, name)()
            shown = check_work(name, results[name])
            print(f"{title:12} {name:11} {time.perf_counter() - began:5.1f} s  {shown}", flush=True)
    pairs = list(itertools.combinations(NAMES, 2))
    unlike = [f"{a} and {b}" for a, b in pairs if differences(results[a], results[b])]
    if unlike:
        raise MatrixError(f"{title}: not the same bits: {', '.join(unlike)}")
    print(
        f"{title:12} {len(pairs)} pairs of ways: every token and every bit of {COUNT * NEW} logit rows equal"
    )
    return results["alone"]


def run_inverse(fixed: Sequence[str]) -> None:
    """Raises MatrixError where fast mode gives the same bits in every way."""
    with tempfile.TemporaryDirectory() as folder:
        ways = Ways([*fixed, "numerics.mode=fast"], Path(folder))
        alone = ways.alone()
        found = {name: differences(getattr(ways, name)(), alone) for name in ("batch", "chunk", "prefix_hit")}
    print(f"inverse      fast mode, requests of {COUNT} that differ from alone: {found}")
    if not any(found.values()):
        raise MatrixError("fast mode gives the same bits here, so that the equalities are no evidence")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; 0 if all of it holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--formats", default="auto,int8", help="KV formats; auto is the dtype itself")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    base = [f"model={options.model}", f"threads.count={options.threads}"]
    try:
        for dtype in options.dtypes.split(","):
            plain: dict[str, Result] = {}
            for form in options.formats.split(","):
                fixed = [*base, f"dtype={dtype}", f"kv_cache.format={form}"]
                plain[form] = run_matrix(fixed, f"{dtype}/{form}")
            for one, other in itertools.combinations(plain, 2):
                if not differences(plain[one], plain[other]):
                    raise MatrixError(f"{dtype}: KV in {one} and {other} gives the same logits")
        run_inverse([*base, f"dtype={options.dtypes.split(',')[-1]}"])
    except MatrixError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print(f"holds; {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
