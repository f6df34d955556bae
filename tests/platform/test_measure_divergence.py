"""Which differences of output are near ties and which are wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest

from counterproof.measure.divergence import Divergence, diverge


@dataclass
class FakeRun:
    tokens: pd.DataFrame
    requests: pd.DataFrame
    block: int = 0


def run(*outputs: list[int], margins: float | None = 1.0, status: str = "ok") -> Any:
    rows = [
        {
            "request_index": r,
            "token_index": i,
            "token_id": t,
            "margin": math.nan if margins is None else margins,
        }
        for r, ids in enumerate(outputs)
        for i, t in enumerate(ids)
    ]
    columns = ["request_index", "token_index", "token_id", "margin"]
    requests = pd.DataFrame({"request_index": range(len(outputs)), "status": status})
    return FakeRun(pd.DataFrame(rows, columns=columns), requests)


def compare(a: Any, b: Any, threshold: float | None) -> Divergence:
    return diverge([a], [b], threshold)


def test_equal_outputs_are_identical() -> None:
    found = compare(run([1, 2], [3]), run([1, 2], [3]), 0.1)
    assert (found.compared, found.identical, found.harmless, found.wrong) == (2, 2, 0, 0)


def test_a_near_tie_is_harmless_and_only_below_the_threshold() -> None:
    assert compare(run([1, 2], margins=0.09), run([1, 5]), 0.1).harmless == 1
    assert compare(run([1, 2], margins=0.1), run([1, 5]), 0.1).wrong == 1
    assert compare(run([1, 2], margins=4.0), run([1, 5]), 0.1).wrong == 1


def test_without_a_threshold_or_a_margin_every_difference_is_wrong() -> None:
    assert compare(run([1, 2], margins=0.0), run([1, 5]), None).wrong == 1
    assert compare(run([1, 2], margins=None), run([1, 5]), 0.1).wrong == 1
    assert compare(run([1, 2], margins=0.0), run([1, 5]), 0.0).wrong == 1


def test_the_first_difference_decides() -> None:
    found = compare(run([7, 1, 2, 3]), run([7, 9, 9, 9]), 2.0)
    (difference,) = found.differences
    assert (difference.position, difference.baseline_token, difference.other_token) == (1, 1, 9)
    assert difference.harmless


@pytest.mark.parametrize("threshold", [0.5, None])
def test_an_output_that_stops_early_or_runs_on_differs(threshold: float | None) -> None:
    shorter = compare(run([1, 2, 3]), run([1, 2]), threshold)
    assert shorter.wrong == 1
    assert shorter.differences[0].position == 2
    longer = compare(run([1, 2]), run([1, 2, 3]), threshold)
    assert longer.wrong == 1
    assert longer.differences[0].margin is None


def test_no_successful_request_is_no_comparison() -> None:
    assert compare(run([1, 2], status="error"), run([1, 2]), 0.1).compared == 0
    assert diverge([], [], 0.1).compared == 0
