"""The sequential test for harm: looking after every block without inflating false alarms.

E_n = 1/4 sum over lambda in {.2, .4, .6, .8} of prod_i (1 + lambda sgn(psi_i - ln(1 + margin))), psi positive =
worse, ties count 0. If the median block is inside the margin, E is a supermartingale, so P(E ever >= c) <= 1/c
(Ville's inequality) for any number of looks. Seven straight bad blocks give 25.6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LAMBDAS = (0.2, 0.4, 0.6, 0.8)
BASE_THRESHOLD = 20.0


def e_values(psi: Sequence[float], margin: float) -> list[float]:
    """E after each block. `psi`: log ratios oriented so that positive is worse; `margin`: a fraction."""
    edge = math.log1p(margin)
    wealth = [1.0] * len(LAMBDAS)
    path = []
    for value in psi:
        sign = (value > edge) - (value < edge)
        wealth = [w * (1.0 + bet * sign) for w, bet in zip(wealth, LAMBDAS, strict=True)]
        path.append(sum(wealth) / len(wealth))
    return path


def fires(psi: Sequence[float], margin: float, guardrails: int) -> tuple[bool, float, float]:
    """(fired at any block so far, the largest E, the threshold 20 x number of guardrails watched)."""
    threshold = BASE_THRESHOLD * max(1, guardrails)
    largest = max(e_values(psi, margin), default=1.0)
    return largest >= threshold, largest, threshold
