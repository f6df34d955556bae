"""What one engine step costs beside its kernels: microseconds of Python, with kernels that compute nothing.

    python benchmarks/step_overhead.py
    python benchmarks/step_overhead.py --rows 1 16 64 --context 200 --steps 300 --profile

The engine, its scheduler, worker, trace and native decoder are the real ones; only the calls into the kernels (layers,
head, choice of a token) return at once. Each figure is the median step and the 90th percentile of the steps with all
rows decoding. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from typing import Any


def main(argv: list[str] | None = None) -> int:
    """Print the table. Returns the exit status."""
    args = _arguments(argv)
    print(f"{'rows':>5} {'context':>8} {'median us':>10} {'p90 us':>8} {'us per row':>11}")
    for rows in args.rows:
        times = measure(args.model, rows, args.context, args.steps, profile=args.profile)
        median = statistics.median(times)
        p90 = sorted(times)[int(len(times) * 0.9)]
        print(f"{rows:>5} {args.context:>8} {median:>10.0f} {p90:>8.0f} {median / rows:>11.1f}")
    return 0


def measure(model: str, rows: int, context: int, steps: int, *, profile: bool = False) -> list[float]:
    """Microseconds of each of `steps` decode steps of `rows` requests that already hold `context` tokens."""
    from intaglio.config import from_flat
    from intaglio.engine import Engine
    from intaglio.intake.request import SamplingParams

    values: dict[str, Any] = {
        "model": model,
        "numerics.mode": "invariant",
        "threads.count": 1,
        "scheduler.max_running": rows,
        "scheduler.token_budget": max(2048, rows * context),
    }
    times: list[float] = []
    watch = cProfile.Profile() if profile else None
    with Engine(from_flat(values)) as engine:
        take_kernels_out(engine)
        params = SamplingParams(max_tokens=steps + 8, ignore_eos=True)
        for _ in range(rows):
            engine.add([5] * context, params)
        for _ in range(4):
            engine.step()
        if watch:
            watch.enable()
        while len(times) < steps:
            began = time.perf_counter_ns()
            events = engine.step()
            times.append((time.perf_counter_ns() - began) / 1e3)
            if len(events) != rows:
                raise RuntimeError(f"a step of {len(events)} rows where {rows} were to decode")
        if watch:
            watch.disable()
    if watch:
        pstats.Stats(watch).sort_stats("tottime").print_stats(28)
    return times


def take_kernels_out(engine: Any) -> None:
    """Put calls that return at once in place of the kernels. Raises RuntimeError where these are not native."""
    backend = engine._loaded.runner.worker._backend
    context = getattr(getattr(backend, "_decoder", None), "context", None)
    if context is None:
        raise RuntimeError(f"no native kernels here ({backend.path}); there is nothing to take out")
    context.forward = compute_nothing
    context.choose = choose_seven


def compute_nothing(_model: Any, _step: Any) -> None:
    """In place of the layers and the head."""


def choose_seven(_logits: Any, jobs: Any) -> None:
    """Token 7 for every job, written where the kernel would write it."""
    for job in jobs:
        job.token = 7


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny", help="a folder or a catalogue name")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
