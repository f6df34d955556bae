"""The positive control: was the delay injected into the `slowed` arm measured, in milliseconds per engine step?

Per block the estimate is the median over steps of (slowed step - baseline step), the two runs having the same
work, step by step; where the step counts differ, the difference of the median step times. A step lasts from its
gauge row (written when it is planned) to the next row. The study recovered the delay when the t interval across blocks
excludes 0 and meets delay x (1 +- 20 %), widened by 0.3 ms of timer granularity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterproof.measure.interval import MIN_BLOCKS, t_interval
from counterproof.measure.load import RunData

TOLERANCE = 0.2
TIMER_MS = 0.3


@dataclass(frozen=True)
class Recovery:
    """`passed` None: not decidable; the detail says why. Values in ms per engine step."""

    passed: bool | None
    detail: str
    injected_ms: float
    estimate_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None

    def facts(self) -> dict[str, Any]:
        """The numbers behind the verdict, for the record."""
        return {
            "injected_ms_per_step": self.injected_ms,
            "estimate_ms_per_step": self.estimate_ms,
            "ci_low": self.low_ms,
            "ci_high": self.high_ms,
        }


def recovered_delay(
    baseline: Sequence[RunData], slowed: Sequence[RunData], injected_us: int | None
) -> Recovery:
    """Judge the control over blocks (both sequences in the same block order)."""
    if not injected_us:
        return Recovery(None, "the plan injects no delay, so nothing shows that an effect could be seen", 0.0)
    injected = injected_us / 1000
    estimates = [_block_estimate(b, s) for b, s in zip(baseline, slowed, strict=True)]
    if any(e is None for e in estimates):
        return Recovery(None, "the engine recorded no step times", injected)
    interval = t_interval(estimates)
    if interval is None:
        return Recovery(None, f"needs {MIN_BLOCKS} blocks, has {len(estimates)}", injected)
    margin = TOLERANCE * injected + TIMER_MS
    found = (
        f"{interval.mean:.2f} ms per step [{interval.low:.2f}, {interval.high:.2f}], injected {injected:.2f}"
    )
    if interval.contains(0.0):
        passed, detail = False, f"the injected delay cannot be told from nothing: {found}"
    elif interval.high < injected - margin or interval.low > injected + margin:
        passed, detail = False, f"the injected delay was measured wrongly: {found}"
    else:
        passed, detail = True, f"recovered {found}"
    return Recovery(passed, detail, injected, interval.mean, interval.low, interval.high)


def step_times(run: RunData) -> NDArray[np.float64]:
    """Durations in ms of the engine's steps; what follows a row without a running request is no step.

    A server's steps are not seen; the time between two chunks of an answer stands for them.
    """
    if run.remote:
        return run.chunk_gaps
    rows = run.resources[run.resources["source"] == "engine"]
    time = rows["time_ns"].to_numpy(dtype=np.float64)
    busy = rows["running"].fillna(0).to_numpy(dtype=np.float64)[:-1] > 0
    return np.asarray(np.diff(time)[busy] / 1e6, dtype=np.float64)


def _block_estimate(baseline: RunData, slowed: RunData) -> float | None:
    a, b = step_times(baseline), step_times(slowed)
    if a.size == 0 or b.size == 0:
        return None
    if a.size == b.size:
        return float(np.median(b - a))
    return float(np.median(b) - np.median(a))
