"""A reviewer is told when the controls can only fail, from pairs alike and without a word about which arm is which."""

from __future__ import annotations

import math
from typing import Any

import pytest

from counterproof_review.protocol import estimates
from counterproof_review.protocol.events import REVIEWER, Event
from counterproof_review.protocol.machine import State

ARMS = ["0aaaaaaa", "1bbbbbbb", "2ccccccc", "3ddddddd"]


def state(*blocks: list[float]) -> State:
    """Ended attempts: log times of the four arms, block by block, six blocks an attempt."""
    ends = []
    for number in range(0, len(blocks), 6):
        runs: list[dict[str, Any]] = [
            {"arm": arm, "block": block, "value": math.exp(value)}
            for block, values in enumerate(blocks[number : number + 6])
            for arm, value in zip(ARMS, values, strict=True)
        ]
        ends.append(Event(REVIEWER, number, "end", {"runs": runs}))
    return State(ends=tuple(ends))


QUIET = [[0.001 * (-1) ** i, 0.0, -1.0, 0.5] for i in range(6)]
NOISY = [[0.2 * (-1) ** i, 0.05 * i, -1.0, 0.5] for i in range(6)]


@pytest.mark.parametrize(
    ("blocks", "apart"),
    [(QUIET, False), (NOISY, True), (QUIET[:5], False), (NOISY[:5], False), (NOISY + QUIET * 40, False)],
)
def test_only_where_no_pair_agrees(blocks: list[list[float]], apart: bool) -> None:
    assert estimates.all_apart(state(*blocks), ARMS, 0.05) is apart
