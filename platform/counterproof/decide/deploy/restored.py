"""Is a restored baseline as fast as one that was never replaced? Equivalence by two one-sided tests. Pure.

Both servers answer the same probes in turns, so that drift of the machine meets both alike. A round gives one log ratio
of medians; the 90 % t interval of its mean must lie inside the margin.
Source: Schuirmann, J. Pharmacokin. Biopharm. 15, 1987 (two one-sided tests at 5 % each).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from counterproof.measure.interval import MIN_BLOCKS, log_ratios, t_interval

EQUIVALENT, NOT_SHOWN, DIFFERENT = "equivalent", "not shown", "different"


def latency_equivalence(
    restored: Sequence[Sequence[float]],
    control: Sequence[Sequence[float]],
    margin: float,
    what: str = "latency after the rollback",
) -> dict[str, Any]:
    """`restored`, `control`: latencies of each round in any one unit; margin: a fraction (0.05 = 5 %).

    status: `equivalent`, `different` (the interval lies wholly outside), else `not shown` with the reason.
    """
    ratios = log_ratios([statistics.median(r) for r in restored], [statistics.median(c) for c in control])
    found = t_interval(ratios, alpha=0.10)
    base: dict[str, Any] = {"rounds": len(ratios), "margin": margin, "low": None, "high": None}
    if found is None:
        reason = f"{len(ratios)} rounds; an interval needs at least {MIN_BLOCKS}, each with a latency"
        return {**base, "status": NOT_SHOWN, "text": reason}
    edge = math.log1p(margin)
    low, high = math.expm1(found.low), math.expm1(found.high)
    shown = f"{what} {100 * low:+.1f} % to {100 * high:+.1f} % of an untouched baseline's (90 %)"
    if -edge < found.low and found.high < edge:
        status, text = EQUIVALENT, f"{shown}, inside ±{100 * margin:g} %"
    elif found.low > edge or found.high < -edge:
        status, text = DIFFERENT, f"{shown}, beyond ±{100 * margin:g} %"
    else:
        status, text = NOT_SHOWN, f"{shown}, across ±{100 * margin:g} %: more rounds would tell"
    return {**base, "low": low, "high": high, "status": status, "text": text}


def verdict(facts: dict[str, Any]) -> str:
    """Why a drill failed, "" if it passed. A latency that too few samples could not judge fails nothing, and says so."""
    checks = (
        (facts["failed"] == 0, f"{facts['failed']} of {facts['requests']} requests failed"),
        (facts["by_candidate"] > 0, "no request was answered by the candidate"),
        (facts["by_restored"] > 0, "no request of the load was answered by the restored baseline"),
        (facts["configuration_equal"], "another configuration than before serves after the rollback"),
        (facts["outputs_equal"], "outputs after the rollback are not those from before"),
        (facts["latency"]["status"] != DIFFERENT, facts["latency"]["text"]),
    )
    return "; ".join(text for held, text in checks if not held)
