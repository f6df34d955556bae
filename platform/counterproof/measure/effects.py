"""The effect of one arm against the baseline on one per-run value, with its interval across blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from counterproof.measure.interval import MIN_BLOCKS, differences, log_ratios, t_interval, t_p_value
from counterproof.measure.signflip import sign_flip_p

Values = Sequence[float | None]


def effect(baseline: Values, other: Values, reason: str = "") -> dict[str, Any]:
    """d = ln(other / baseline) per block and what follows from it.

    `ratio`, `ci_low`, `ci_high` are ratios (95 %); `mean` and `s` are in log units; `difference` holds the same in
    the metric's own unit, for values that may be 0. What cannot be had is None and `reason` says why.
    """
    d = log_ratios(other, baseline)
    present = [value for value in d if value is not None]
    interval = t_interval(d)
    mean = sum(present) / len(present) if present and len(present) == len(d) else None
    return {
        "d": d,
        "mean": mean,
        "ratio": None if mean is None else math.exp(mean),
        "ci_low": None if interval is None else math.exp(interval.low),
        "ci_high": None if interval is None else math.exp(interval.high),
        "s": None if interval is None else interval.s,
        "k": len(present),
        "p_value": t_p_value(d),
        "sign_flip_p": sign_flip_p(d),
        "difference": _difference(baseline, other),
        "reason": "" if interval is not None else _why(d, baseline, other, reason),
    }


def _difference(baseline: Values, other: Values) -> dict[str, Any]:
    values = differences(other, baseline)
    interval = t_interval(values)
    present = [v for v in values if v is not None]
    mean = sum(present) / len(present) if present and len(present) == len(values) else None
    return {
        "mean": mean,
        "ci_low": None if interval is None else interval.low,
        "ci_high": None if interval is None else interval.high,
    }


def _why(d: Values, baseline: Values, other: Values, reason: str) -> str:
    if not d:
        return "no complete block"
    if any(v is None for v in (*baseline, *other)):
        return reason or "a block has no value"
    if any(v is not None and v <= 0 for v in (*baseline, *other)):
        return "a ratio with 0 does not exist; see the difference"
    return f"needs {MIN_BLOCKS} blocks, has {len(d)}"
