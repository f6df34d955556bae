"""What a competing process costs: tokens/s of one request with a core taken by another process, over without.

    python benchmarks/contention.py --model smollm2-135m --dtype bf16
    python benchmarks/contention.py --threads 2 --core 1 --repeats 5

The competitor computes without pause, bound to one of the engine's cores. Phases with and without it take turns in
one run; the median of each is compared. A fair share alone would leave about 75 % on two cores; an engine that waits
for all of its threads in every layer keeps far less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

BUSY = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nx = 0\nwhile True: x += 1"


def main(argv: list[str] | None = None) -> int:
    """Print both rates and their ratio. Returns the exit status."""
    args = _arguments(argv)
    from intaglio.config import from_flat
    from intaglio.engine import Engine

    if not hasattr(os, "sched_setaffinity"):
        raise SystemExit("this system cannot bind a process to a core, so there is nothing to measure here")
    values: dict[str, Any] = {
        "model": args.model,
        "dtype": args.dtype,
        "numerics.mode": args.mode,
        "threads.count": args.threads,
    }
    core = max(os.sched_getaffinity(0)) if args.core is None else args.core
    alone: list[float] = []
    contended: list[float] = []
    with Engine(from_flat(values)) as engine:
        rate(engine, args.tokens)
        for _ in range(args.repeats):
            alone.append(rate(engine, args.tokens))
            contended.append(beside(engine, core, args.tokens))
    one, two = statistics.median(alone), statistics.median(contended)
    print(f"alone {one:.1f} tokens/s, beside a busy process on core {core} {two:.1f}, ratio {two / one:.2f}")
    return 0


def beside(engine: Any, core: int, tokens: int) -> float:
    """The rate while another process computes on `core`; that process is ended before this returns."""
    with subprocess.Popen([sys.executable, "-c", BUSY, str(core)], stdout=subprocess.PIPE) as other:
        try:
            if other.stdout is None or not other.stdout.readline():
                raise RuntimeError(f"the competing process did not start on core {core}")
            return rate(engine, tokens)
        finally:
            other.kill()


def rate(engine: Any, tokens: int) -> float:
    """Tokens per second of one request's decode steps."""
    from intaglio.intake.request import SamplingParams

    stamps: list[int] = []
    for _ in engine.stream([5 + i for i in range(32)], SamplingParams(max_tokens=tokens, ignore_eos=True)):
        stamps.append(time.perf_counter_ns())
    return (len(stamps) - 1) / ((stamps[-1] - stamps[0]) / 1e9)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a folder or a catalogue name")
    parser.add_argument("--dtype", default="bf16", choices=("fp32", "bf16"))
    parser.add_argument("--mode", default="invariant", choices=("auto", "fast", "invariant"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--core", type=int, default=None, help="the competitor's core (default: the last)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
