"""What a decode step costs with more rows: time of 1, 2, 4, 8, 16 rows over that of one, at two context lengths.

    python benchmarks/rows.py --model smollm2-135m --dtype bf16
    python benchmarks/rows.py --model smollm2-135m --dtype bf16 --contexts 512 --repeats 9

One engine step is timed, Python included. Every repeat times all row counts in turn, so that ratios come from the
same seconds; the medians of the repeats' ratios are printed. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

COUNTS = (1, 2, 4, 8, 16)


def main(argv: list[str] | None = None) -> int:
    """Print the table. Returns the exit status."""
    args = _arguments(argv)
    print(f"{'context':>8} {'1 row ms':>9} " + " ".join(f"{f'x{count}':>6}" for count in args.counts[1:]))
    for context in args.contexts:
        times = measure(args, context)
        ratios = {
            count: statistics.median(t / one for t, one in zip(times[count], times[args.counts[0]]))
            for count in args.counts[1:]
        }
        one = statistics.median(times[args.counts[0]])
        print(f"{context:>8} {one:>9.2f} " + " ".join(f"{ratios[count]:>6.2f}" for count in args.counts[1:]))
    return 0


def measure(args: argparse.Namespace, context: int) -> dict[int, list[float]]:
    """Milliseconds of a decode step by row count, one per repeat: the median of `steps` steps each."""
    from intaglio.config import from_flat
    from intaglio.engine import Engine

    values: dict[str, Any] = {
        "model": args.model,
        "dtype": args.dtype,
        "weights.format": args.weights,
        "numerics.mode": "invariant",
        "threads.count": args.threads,
        "scheduler.max_running": max(args.counts),
    }
    times: dict[int, list[float]] = {count: [] for count in args.counts}
    with Engine(from_flat(values)) as engine:
        for _ in range(args.repeats):
            for count in args.counts:
                times[count].append(decode(engine, count, context, args.steps))
    return times


def decode(engine: Any, rows: int, context: int, steps: int) -> float:
    """Prefill `rows` requests of `context` tokens, then the median decode step in milliseconds."""
    from intaglio.intake.request import SamplingParams

    params = SamplingParams(max_tokens=steps + 16, ignore_eos=True)
    names = [engine.add([(7 * i + row) % 200 + 5 for i in range(context)], params) for row in range(rows)]
    took: list[float] = []
    while len(took) < steps + 2:
        began = time.perf_counter_ns()
        events = engine.step()
        if len(events) == rows:
            took.append((time.perf_counter_ns() - began) / 1e6)
    for name in names:
        engine.abort(name)
        engine.step()
        engine.output(name)
    return statistics.median(took[2:])


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a folder or a catalogue name")
    parser.add_argument("--dtype", default="bf16", choices=("fp32", "bf16"))
    parser.add_argument("--weights", default="auto", choices=("auto", "int8", "q8_0", "q4_1"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
