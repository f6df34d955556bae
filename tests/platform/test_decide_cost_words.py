"""A gain without a price: the answer says that none was found, and what was not looked at."""

from __future__ import annotations

from typing import Any

import pytest

from counterproof.decide.answers import cost_went
from counterproof.decide.report import memory_price


def cell(stage: str, resource: str, low: float | None, status: str = "measured") -> dict[str, Any]:
    base: dict[str, Any] = {"stage": stage, "resource": resource, "status": status, "reason": "no counter"}
    return base | {
        "baseline": 10.0,
        "candidate": 11.0,
        "ratio": 1.1,
        "ci_low": None,
        "ci_high": None,
        "unit": "ms",
        "difference": {"ci_low": low},
    }


def comparison(*cells: dict[str, Any], verdict: str = "gain") -> dict[str, Any]:
    return {"cost": list(cells), "metrics": {"tpot_ms": {"verdict": verdict}}}


def test_a_gain_without_a_worse_cell_lists_what_was_not_measured() -> None:
    cells = (
        cell("compute", "time_p50", -1.0),
        cell("state", "bytes_moved", None, "not measured"),
        cell("whole", "time_p99", None, "not measured"),
    )
    answer = cost_went(comparison(*cells))
    assert answer["found"] is False
    assert answer["text"].startswith("Cost not found in what was measured; a gain without a price")
    assert "Not measured: KV bytes moved: no counter; end-to-end time (p99): no counter." in answer["text"]
    quiet = cost_went(comparison(*cells, verdict="no claim"))["text"]
    assert "that is not proof that there is none" in quiet


def test_a_price_that_was_found_is_told_instead() -> None:
    answer = cost_went(comparison(cell("compute", "time_p50", 0.5), cell("whole", "time_p50", 0.1)))
    assert answer["found"] is True
    assert "Cost not found" not in answer["text"]


def test_a_whole_matrix_leaves_nothing_unsaid() -> None:
    assert cost_went(comparison(cell("compute", "time_p50", -1.0)))["text"].endswith(
        "Every cell of the matrix was measured."
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (40 << 20, 21 << 20, "19.00 MiB less than the baseline"),
        (21 << 20, 40 << 20, "19.00 MiB more than the baseline"),
        (5, 5, "0 B more than the baseline"),
    ],
)
def test_the_price_in_memory_says_which_way(before: int, after: int, words: str) -> None:
    arms = {"baseline": {"measured_kv_bytes": [before]}, "candidate": {"measured_kv_bytes": [None, after]}}
    assert memory_price({"memory": {"arms": arms}}) == words


def test_a_price_in_memory_that_was_not_measured_is_not_invented() -> None:
    arms = {"baseline": {"measured_kv_bytes": [1]}, "candidate": {"measured_kv_bytes": [None]}}
    assert memory_price({"memory": {"arms": arms}}) == "not measured"
