"""Outputs token by token inside the timed runs: which first differences are harmless, which are wrong outputs.

Library kernels may round differently when the work is shaped differently, which can tip a near tie. A first
differing token is harmless only where the baseline's top-1 margin is below twice the largest logit difference that
the equivalence phase measured for the baseline between batch compositions. Everything else, also a missing margin
or threshold, is a wrong output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from counterproof.measure.load import RunData


@dataclass(frozen=True)
class FirstDifference:
    """Where one request's outputs part, and what the baseline's margin there was (None: not recorded)."""

    block: int
    request_index: int
    position: int
    baseline_token: int | None
    other_token: int | None
    margin: float | None
    harmless: bool


@dataclass(frozen=True)
class Divergence:
    """Counts over all requests of one arm against the baseline. `compared` 0 means nothing was compared."""

    compared: int
    identical: int
    harmless: int
    wrong: int
    differences: tuple[FirstDifference, ...]

    def facts(self, threshold: float | None) -> dict[str, Any]:
        """For the record; at most twenty differences are listed, wrong ones first."""
        listed = sorted(self.differences, key=lambda d: d.harmless)[:20]
        return {
            "compared": self.compared,
            "identical": self.identical,
            "harmless": self.harmless,
            "wrong": self.wrong,
            "threshold": threshold,
            "first_differences": [vars(d) for d in listed],
        }


def diverge(baseline: Sequence[RunData], other: Sequence[RunData], threshold: float | None) -> Divergence:
    """Compare block by block; `threshold` is in raw logits (None: no difference is harmless)."""
    found: list[FirstDifference] = []
    compared = identical = 0
    for a, b in zip(baseline, other, strict=True):
        left, right = _by_request(a.tokens), _by_request(b.tokens)
        for index in _both_ok(a, b):
            compared += 1
            difference = _first(int(a.block or 0), index, left.get(index), right.get(index), threshold)
            if difference is None:
                identical += 1
            else:
                found.append(difference)
    harmless = sum(d.harmless for d in found)
    return Divergence(compared, identical, harmless, len(found) - harmless, tuple(found))


def near_tie(margin: float | None, threshold: float | None) -> bool:
    """Whether rounding alone can explain a first difference: the one rule, for authors and reviewers. Both in logits."""
    return margin is not None and threshold is not None and margin < threshold


_Sequence = tuple[list[int], list[float]]


def _by_request(tokens: pd.DataFrame) -> dict[int, _Sequence]:
    """Token ids and margins of each request; the table is ordered by request and position."""
    if tokens.empty:
        return {}
    index = tokens["request_index"].to_numpy()
    ids, margins = tokens["token_id"].to_numpy(), tokens["margin"].to_numpy(dtype=np.float64)
    cuts = np.flatnonzero(np.diff(index)) + 1
    starts = [0, *cuts.tolist()]
    parts = zip(np.split(ids, cuts), np.split(margins, cuts), strict=True)
    return {int(index[at]): (a.tolist(), b.tolist()) for at, (a, b) in zip(starts, parts, strict=True)}


def _both_ok(a: RunData, b: RunData) -> list[int]:
    left, right = (_ok(run.requests) for run in (a, b))
    return sorted(left & right)


def _ok(requests: pd.DataFrame) -> set[int]:
    good = (requests["status"] == "ok").to_numpy(dtype=bool)
    return {int(i) for i in requests["request_index"].to_numpy()[good]}


def _first(
    block: int, index: int, left: _Sequence | None, right: _Sequence | None, threshold: float | None
) -> FirstDifference | None:
    a, margins = left or ([], [])
    b = (right or ([], []))[0]
    if a == b:
        return None
    common = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    position = next(common, min(len(a), len(b)))
    margin = margins[position] if position < len(margins) and math.isfinite(margins[position]) else None
    return FirstDifference(
        block=block,
        request_index=index,
        position=position,
        baseline_token=a[position] if position < len(a) else None,
        other_token=b[position] if position < len(b) else None,
        margin=margin,
        harmless=near_tie(margin, threshold),
    )
