"""The equivalence phase's evidence: bitwise digests, and how far rounding moves the tokens that could change places."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from counterproof.errors import ExecutionError
from counterproof.run import equivalence
from counterproof.run.targets.protocol import Logits, Output
from counterproof.workload.sealed import SealedRequest

REQUESTS = [SealedRequest(i, (1, 2), 2, seed=i) for i in range(2)]


def result(ids: tuple[int, ...], rows: list[list[float]], error: str | None = None) -> Logits:
    count = len(ids)
    output = Output("x", ids, "t", "length", 9, 3, 0, error)
    matrix = np.asarray(rows, np.float32).reshape(count, len(rows[0]) if rows else 0)
    return Logits(output, 1, tuple(range(2, 2 + count)), (-0.5,) * count, (1.0,) * count, matrix)


BASE = [result((1, 0), [[0.0, 3.0, 2.5, -9.0], [4.0, 1.0, 0.0, -9.0]]) for _ in REQUESTS]


def changed(row: int, column: int, by: float) -> list[Logits]:
    """BASE with one logit of the second request moved."""
    rows = BASE[1].rows.copy()
    rows[row, column] += by
    return [BASE[0], dataclasses.replace(BASE[1], rows=rows)]


def test_a_single_bit_of_one_logit_changes_the_digest_of_its_request_alone() -> None:
    rows = BASE[1].rows.copy()
    rows[1, 3] = np.nextafter(rows[1, 3], np.float32(0))
    other = [BASE[0], dataclasses.replace(BASE[1], rows=rows)]
    first, second = (equivalence.digests(REQUESTS, results) for results in (BASE, other))
    assert first[0]["logits_sha256"] == second[0]["logits_sha256"]
    assert first[1]["logits_sha256"] != second[1]["logits_sha256"]
    assert first[1]["tokens_sha256"] == second[1]["tokens_sha256"]
    assert (first[0]["logit_rows"], first[0]["vocabulary"]) == (2, 4)
    # -0.0 and 0.0 are equal numbers and different bits.
    signed = BASE[0].rows.copy()
    signed[0, 0] = -0.0
    (other_sign,) = equivalence.digests(REQUESTS[:1], [dataclasses.replace(BASE[0], rows=signed)])
    assert other_sign["logits_sha256"] != first[0]["logits_sha256"]


def test_the_rounding_event_takes_the_largest_move_of_a_contender() -> None:
    event = equivalence.rounding_event(REQUESTS, BASE, changed(0, 2, 0.25), changed(1, 1, -0.5))
    assert (event["batching"], event["order_of_additions"], event["max_abs"]) == (0.25, 0.5, 0.5)
    assert event["requests_that_diverged"] == 0


def test_a_token_that_cannot_win_does_not_count_but_one_that_comes_up_does() -> None:
    assert equivalence.rounding_event(REQUESTS, BASE, changed(0, 3, 2.0), BASE)["max_abs"] == 0.0
    assert equivalence.rounding_event(REQUESTS, BASE, changed(0, 3, 11.75), BASE)["max_abs"] == 11.75


def test_rows_after_a_first_differing_token_are_not_compared() -> None:
    rows = BASE[1].rows.copy()
    rows[0, 2] += 0.75
    rows[1] += 100.0
    diverged = [BASE[0], dataclasses.replace(result((2, 0), [[0.0] * 4] * 2), rows=rows)]
    event = equivalence.rounding_event(REQUESTS, BASE, diverged, BASE)
    assert event["max_abs"] == 0.75
    assert event["requests_that_diverged"] == 1


@pytest.mark.parametrize(
    "bad",
    [
        result((1,), [[0.0, 1.0]], error="kv_capacity"),
        result((), []),
        result((1,), [[float("nan"), 1.0]]),
        result((1,), [[float("inf"), 1.0]]),
    ],
)
def test_failed_empty_and_non_finite_results_prove_nothing(bad: Logits) -> None:
    with pytest.raises(ExecutionError):
        equivalence.digests(REQUESTS, [BASE[0], bad])
    with pytest.raises(ExecutionError):
        equivalence.rounding_event(REQUESTS, BASE, [BASE[0], bad], BASE)


def test_rows_hold_every_token_with_its_stamps() -> None:
    found: Any = equivalence.rows(REQUESTS, BASE)
    assert [row["status"] for row in found.requests] == ["ok", "ok"]
    assert [row["token_id"] for row in found.tokens] == [1, 0, 1, 0]
    assert found.requests[0]["first_token_ns"] == 2
    assert found.requests[0]["last_token_ns"] == 3
    assert found.outputs[1]["token_ids"] == [1, 0]
