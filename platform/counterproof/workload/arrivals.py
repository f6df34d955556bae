"""When requests arrive: pure arithmetic from a seed, in nanoseconds after the start of the load.

The first request of every process arrives at 0, so that a run never begins with a wait that nobody asked for. One
generator makes all gaps: several that share a seed would send in step, and the sum would not be a Poisson process.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from counterproof.errors import InputError

CLOSED, CONSTANT, POISSON, GAMMA, TRACE = "closed", "constant", "poisson", "gamma", "trace"
PROCESSES = (CLOSED, CONSTANT, POISSON, GAMMA, TRACE)
NS = 1_000_000_000


def arrivals(process: str, count: int, *, rate_per_s: float, cv: float, seed: str) -> list[int | None]:
    """Arrival times of `count` requests, not decreasing; None where a free slot decides (closed).

    rate_per_s  requests a second in the mean
    cv          gamma: coefficient of variation of the gaps (1 is Poisson, above 1 is bursty)
    seed        names the stream; equal names give equal times

    Raises InputError for a process that is not made from a rate.
    """
    if process == CLOSED:
        return [None] * count
    if process == CONSTANT:
        return [round(number * NS / rate_per_s) for number in range(count)]
    if process == POISSON:
        return _sums(_gaps(count, rate_per_s, 1.0, seed))
    if process == GAMMA:
        return _sums(_gaps(count, rate_per_s, cv, seed))
    raise InputError(
        f"workload.arrival '{process}' is not made from a rate",
        details=[f"there are: {', '.join(PROCESSES)}"],
    )


def scaled(times_ns: Sequence[int], scale: float) -> list[int]:
    """Recorded times from 0 on, stretched by `scale` (0.5: twice as fast). Raises InputError if they run back."""
    if any(later < sooner for sooner, later in itertools.pairwise(times_ns)):
        raise InputError("the trace's times run backwards", details=["sort its rows by time"])
    return [round((time - times_ns[0]) * scale) for time in times_ns]


def _gaps(count: int, rate_per_s: float, cv: float, seed: str) -> list[float]:
    """Gamma gaps of mean 1 / rate: shape 1 / cv^2, scale cv^2 / rate (shape 1 is the exponential gap)."""
    generator = random.Random(f"arrivals/{seed}")
    shape = 1.0 / (cv * cv)
    return [generator.gammavariate(shape, 1.0 / (shape * rate_per_s)) for _ in range(count - 1)]


def _sums(gaps_s: Sequence[float]) -> list[int | None]:
    time, result = 0.0, [0]
    for gap in gaps_s:
        time += gap
        result.append(round(time * NS))
    return list(result)
