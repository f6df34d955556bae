"""Two runs of one load, request by request: failures that only the candidate has, and other tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterproof.measure.interval import log_ratios


@dataclass(frozen=True)
class Difference:
    """failed: requests that the candidate fails and the baseline answers; changed: answered with other tokens."""

    failed: int
    changed: int


def difference(baseline: Sequence[Mapping[str, Any]], candidate: Sequence[Mapping[str, Any]]) -> Difference:
    """Compare rows with `status` and `output_sha256`, in the order of requests."""
    failed = changed = 0
    for base, other in zip(baseline, candidate, strict=True):
        if base["status"] == "ok" and other["status"] != "ok":
            failed += 1
        elif base["status"] == other["status"] == "ok" and base["output_sha256"] != other["output_sha256"]:
            changed += 1
    return Difference(failed, changed)


def gain(candidate: float | None, baseline: float | None, sign: float) -> float | None:
    """The gain in log units, None where either run has no value or one that is not positive."""
    (found,) = log_ratios([candidate], [baseline])
    return None if found is None else sign * found
