"""The space that a packet declares for counterexamples, from its scope: the box of the claim and what lies around it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from counterproof_review.challenge.reach import Reach
from counterproof_review.challenge.search import Budget
from counterproof_review.challenge.space import SCHEMA, Dimension, Space, Value, read_space

GENERATOR = "counterproof-challenge/1"
BLOCK_TOKENS = 16
MAX_CONCURRENCY = 16
_SIDES = ("prompt_tokens", "output_tokens", "concurrency")


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
            {"name": "cache", "kind": "choice", "choices": ["fresh", "full"]},
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


def space_of(scope: Mapping[str, Any], document: Mapping[str, Any] | None, reach: Reach) -> Space:
    """The space that is searched here: the declared one (`document`, None: as it would be declared), within reach.

    Numbers are cut to what the engine takes and the metric needs; a choice that cannot be made here falls away. The
    plainest lengths are the least of the scope, so that what is shrunk ends inside the claim's box if it fails there.
    """
    declared = document or {"schema": SCHEMA, **challenge_space(scope)}
    dimensions = (_within(one, reach) for one in read_space(dict(declared)).dimensions)
    return Space(tuple(_plain(one, scope) for one in dimensions))


def box_of(scope: Mapping[str, Any], space: Space) -> Space | None:
    """The part of `space` that lies in the box of the claim: only there does a failure cut it. None: no part of it."""
    dimensions = []
    for one in space.dimensions:
        if one.name in _SIDES:
            low, high = _side(scope, one.name)
            one = replace(one, low=max(one.low, low), high=min(one.high, high))
        if one.low > one.high:
            return None
        dimensions.append(one)
    return Space(tuple(dimensions))


def _plain(one: Dimension, scope: Mapping[str, Any]) -> Dimension:
    if one.name not in ("prompt_tokens", "output_tokens"):
        return one
    return replace(one, plain=one.cast(min(scope[one.name])))


def _within(one: Dimension, reach: Reach) -> Dimension:
    if one.name == "output_tokens":
        return _cut(one, reach.least_outputs, max(reach.least_outputs, reach.longest // 3))
    if one.name == "prompt_tokens":
        return _cut(one, 1, max(1, reach.longest - reach.longest // 3))
    if one.name == "cache" and not reach.fills:
        return replace(one, choices=tuple(c for c in one.choices if c != "full"))
    return one


def _cut(one: Dimension, low: int, high: int) -> Dimension:
    least, most = max(one.low, low), min(one.high, high)
    least = min(least, most)
    return replace(one, low=least, high=most, boundaries=_inside(one.boundaries, least, most))


def _inside(values: tuple[Value, ...], low: float, high: float) -> tuple[Value, ...]:
    return tuple(v for v in values if isinstance(v, int | float) and low <= v <= high)


def cut(
    scope: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], needed: Sequence[str]
) -> dict[str, Any] | None:
    """What is left of the box of a claim without some cells, at its largest: one side of it, up to the first of them.

    Shrinking saw the values before the smallest cell pass; nothing speaks for those behind it.

    cells   that fail for the same cause: the smallest one, and the one that it was shrunk from
    needed  the dimensions that the failure needs; only those can be cut. None: nothing of the box is left
    """
    best: tuple[float, dict[str, Any]] | None = None
    for name in _SIDES:
        if name not in needed:
            continue
        low, high = _side(scope, name)
        values = (int(cell[name]) for cell in cells if name in cell and low <= cell[name] <= high)
        end = min(values, default=low) - 1
        if end < low:
            continue
        share = math.log((end + 1) / low) / math.log((high + 1) / low)
        if best is None or share > best[0]:
            best = share, {name: end if name == "concurrency" else [low, end]}
    return None if best is None else {**{n: scope[n] for n in _SIDES}, **best[1]}


def _side(scope: Mapping[str, Any], name: str) -> tuple[int, int]:
    if name == "concurrency":
        return 1, int(scope[name])
    return min(scope[name]), max(scope[name])


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
