"""The space that a packet declares for counterexamples, from its scope: the box of the claim and what lies around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterproof_review.challenge.search import Budget

GENERATOR = "counterproof-challenge/1"
BLOCK_TOKENS = 16
MAX_CONCURRENCY = 16


def challenge_space(scope: Mapping[str, Any]) -> dict[str, Any]:
    """`dimensions`, `budget` and `generator` of protocol/challenge_space.json.

    scope   protocol/scope.json: prompt_tokens and output_tokens as [least, most], concurrency
    """
    prompts, outputs = max(scope["prompt_tokens"]), max(scope["output_tokens"])
    budget = Budget()
    return {
        "dimensions": [
            _whole("prompt_tokens", 1, 2 * prompts, [*_edges(prompts), *scope["prompt_tokens"]]),
            _whole("output_tokens", 1, 2 * outputs, [2, *scope["output_tokens"]]),
            _whole("concurrency", 1, max(MAX_CONCURRENCY, 2 * scope["concurrency"]), [2, 4, 8]),
            {"name": "prefix_overlap", "kind": "float", "low": 0.0, "high": 1.0, "boundaries": [0.5]},
            {
                "name": "entropy",
                "kind": "choice",
                "choices": ["natural", "repeated", "random", "code", "unicode"],
            },
            {"name": "burstiness", "kind": "choice", "choices": ["closed", "burst"]},
            {"name": "lengths", "kind": "choice", "choices": ["equal", "mixed"]},
        ],
        "budget": {
            "cells": budget.cells,
            "probe_blocks": budget.probe_blocks,
            "confirm_blocks": budget.confirm_blocks,
            "confirm": budget.confirm,
        },
        "generator": GENERATOR,
    }


def inside(scope: Mapping[str, Any], cell: Mapping[str, Any]) -> bool:
    """Whether a cell lies in the box of the claim. A dimension that the scope does not bound counts as inside."""
    for name in ("prompt_tokens", "output_tokens"):
        if name in cell and not min(scope[name]) <= cell[name] <= max(scope[name]):
            return False
    return not ("concurrency" in cell and cell["concurrency"] > scope["concurrency"])


def _whole(name: str, low: int, high: int, boundaries: list[int]) -> dict[str, Any]:
    inside_bounds = sorted({value for value in boundaries if low <= value <= high})
    return {"name": name, "kind": "int", "low": low, "high": high, "log": True, "boundaries": inside_bounds}


def _edges(longest: int) -> list[int]:
    """A block's size and its neighbours, and the same around the largest whole number of blocks in `longest`."""
    last = longest // BLOCK_TOKENS * BLOCK_TOKENS
    return [
        BLOCK_TOKENS - 1,
        BLOCK_TOKENS,
        BLOCK_TOKENS + 1,
        *(v for v in (last - 1, last, last + 1) if v > 0),
    ]
