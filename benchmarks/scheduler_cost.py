"""What planning and committing a step costs, without a model: microseconds per step by running and finished requests.

    python benchmarks/scheduler_cost.py [--steps N] [--context N] [--json]

Every row decodes one token after `--context` tokens. `plan` is the scheduler's choice and the plan's digest,
`commit` takes the workers' answer; the answer is made outside of the measured time. Also printed: the cost of
looking a long prompt up in the prefix cache. Medians over the steps; compare numbers of one run only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from intaglio.intake.planned_step import SchedulerLimits
from intaglio.intake.request import SamplingParams
from intaglio.intake.reuse import PrefixReuse
from intaglio.intake.scheduler import Scheduler
from intaglio.intake.step_plan import RowResult, StepPlan, StepResult
from intaglio.state.block_key import CacheIdentity, KeyChain
from intaglio.state.block_pool import PoolGroup
from intaglio.state.block_pools import BlockPools
from intaglio.state.prefix_cache import PrefixCache
from intaglio.telemetry import Telemetry

BLOCK_TOKENS = 16
IDENTITY = CacheIdentity("m", "r", "bf16", "auto", "bf16", "invariant", "tensor=1", BLOCK_TOKENS)
PARAMS = SamplingParams(max_tokens=1 << 20, ignore_eos=True)


class NullSink:
    """Takes every token and ends nothing."""

    def token(self, sequence: Any, row: RowResult, index: int, reason: str | None) -> str | None:
        del sequence, row, index
        return reason

    def failed(self, sequence: Any, message: str) -> None:
        raise RuntimeError(f"{sequence.request_id}: {message}")


def answer(plan: StepPlan) -> StepResult:
    """A worker's answer that decodes token 7 wherever one is wanted."""
    rows = tuple(RowResult(row.request_id, tokens=(7,) if row.sample else ()) for row in plan.rows)
    return StepResult(plan.step, plan.digest(), rows, tokens_computed=len(rows))


def build(running: int, finished: int, context: int, prefix: bool) -> Scheduler:
    """A scheduler that has finished so many requests and runs others, whose `context` different tokens are computed."""
    blocks = running * (context // BLOCK_TOKENS + 400) + 100
    pools, telemetry = BlockPools([PoolGroup("kv", blocks, BLOCK_TOKENS, 1024)]), Telemetry()
    limits = SchedulerLimits(1 << 20, running, None, 1 << 20, frozenset())
    reuse = (
        PrefixReuse(PrefixCache(pools, telemetry.counters), IDENTITY, telemetry.counters) if prefix else None
    )
    scheduler = Scheduler(limits, pools, telemetry, reuse)
    for index in range(finished):
        scheduler.add(f"gone-{index:012d}", [1, 2, 3], SamplingParams(max_tokens=1), 1)
    while scheduler.has_work:
        step(scheduler)
    for index in range(running):
        prompt = [(index * context + i) % 50_000 for i in range(context)]
        scheduler.add(f"request-{index:012d}", prompt, PARAMS, 1)
    step(scheduler)
    return scheduler


def step(scheduler: Scheduler) -> tuple[int, int]:
    """One step. Nanoseconds of planning (with the digest) and of committing."""
    began = time.perf_counter_ns()
    planned = scheduler.plan()
    if planned is None:
        raise RuntimeError("there is nothing to plan")
    planned.plan.digest()
    ready = time.perf_counter_ns()
    result = answer(planned.plan)
    answered = time.perf_counter_ns()
    scheduler.complete(planned, result, NullSink())
    return ready - began, time.perf_counter_ns() - answered


def measure(running: int, finished: int, context: int, steps: int, *, prefix: bool) -> dict[str, Any]:
    """Medians over `steps` steps in microseconds."""
    scheduler = build(running, finished, context, prefix)
    for _ in range(20):
        step(scheduler)
    times = [step(scheduler) for _ in range(steps)]
    plan, commit = (statistics.median(part) / 1000 for part in zip(*times))
    whole = statistics.median(map(sum, times)) / 1000
    key = {"running": running, "finished": finished, "prefix_cache": prefix}
    return key | {"plan_us": round(plan, 1), "commit_us": round(commit, 1), "step_us": round(whole, 1)}


def lookup(tokens: int, repeats: int = 5) -> dict[str, Any]:
    """Hashing and matching a prompt of which every block is cached, in milliseconds (best of `repeats`)."""
    blocks, prompt = tokens // BLOCK_TOKENS, list(range(tokens))
    pools, telemetry = BlockPools([PoolGroup("kv", blocks, BLOCK_TOKENS, 1024)]), Telemetry()
    cache, root = PrefixCache(pools, telemetry.counters), IDENTITY.root("")
    chain = KeyChain(root, BLOCK_TOKENS)
    chain.extend(prompt, blocks)
    tables = pools.allocate(blocks)
    cache.commit(chain, "", tables, pools.generations(tables), blocks)
    times = []
    for _ in range(repeats):
        again = KeyChain(root, BLOCK_TOKENS)
        began = time.perf_counter_ns()
        again.extend(prompt, blocks)
        found = cache.match(again, blocks)
        times.append(time.perf_counter_ns() - began)
        if len(found) != blocks:
            raise RuntimeError(f"{len(found)} of {blocks} blocks were found")
    return {"tokens": tokens, "blocks": blocks, "lookup_ms": round(min(times) / 1e6, 2)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, return 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="steps per cell (default: 300)")
    parser.add_argument(
        "--context", type=int, default=3000, metavar="N", help="tokens per request (default: 3000)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    cells = [(1, 0), (16, 0), (64, 0), (64, 10_000)]
    rows = [
        measure(running, finished, args.context, args.steps, prefix=prefix)
        for prefix in (False, True)
        for running, finished in cells
    ]
    found = lookup(100_000)
    if args.json:
        print(json.dumps({"context": args.context, "steps": args.steps, "cells": rows, "lookup": found}))
        return 0
    print(f"{'running':>8}{'finished':>10}{'prefix':>8}{'plan us':>10}{'commit us':>11}{'step us':>10}")
    for row in rows:
        print(
            f"{row['running']:>8}{row['finished']:>10}{'on' if row['prefix_cache'] else 'off':>8}"
            f"{row['plan_us']:>10}{row['commit_us']:>11}{row['step_us']:>10}"
        )
    print(
        f"look-up of {found['tokens']:,} tokens in {found['blocks']:,} cached blocks: {found['lookup_ms']} ms"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
