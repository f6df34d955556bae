"""Boxes: where a claim holds, and whether what is asked for lies inside it. Pure.

What was shown is `decision.json`'s scope. A field that the evidence does not name was not shown, so nothing can lie
inside it: silence never widens a box.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterproof.errors import InputError

# These must be equal: another model, precision or machine is another question.
EQUAL = ("model_sha256", "dtype", "device", "numerics", "hardware", "workload")
# These are spans of whole numbers; a single number is a span of one.
SPANS = ("prompt_tokens", "output_tokens", "concurrency")
FIELDS = (*EQUAL, *SPANS)
# Named for people; the hash decides.
NOTED = ("model",)


def of_scope(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The box of a decision's scope, without its counts of runs."""
    return {name: scope.get(name) for name in (*NOTED, *FIELDS)}


def narrowed(box: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """`box` with some fields replaced. Whether that lies inside is for `beyond` to say.

    Raises InputError for a field that there is none of.
    """
    if unknown := sorted(limits.keys() - set(FIELDS)):
        raise InputError(f"a scope has no {', '.join(unknown)}", details=[f"it has: {', '.join(FIELDS)}"])
    return {**box, **limits}


def beyond(proven: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Where `asked` leaves `proven`, one line a field; empty when it lies inside."""
    found = [_unequal(name, proven.get(name), asked.get(name)) for name in EQUAL]
    found += [_outside(name, proven.get(name), asked.get(name)) for name in SPANS]
    return [line for line in found if line is not None]


def span(value: Any) -> tuple[int, int] | None:
    """`[low, high]`, or a number as a span of one; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    if isinstance(value, list | tuple) and len(value) == 2 and all(type(v) is int for v in value):
        return (value[0], value[1]) if value[0] <= value[1] else None
    return None


def parse_span(name: str, text: str) -> list[int]:
    """`10:200` or `8` from a command line. Raises InputError."""
    low, _, high = text.partition(":")
    try:
        found = [int(low), int(high or low)]
    except ValueError:
        found = []
    if not found or found[0] > found[1] or found[0] < 0:
        raise InputError(f"{name} must be a number or LOW:HIGH, not '{text}'")
    return found


def _unequal(name: str, proven: Any, asked: Any) -> str | None:
    if proven in (None, {}):
        return f"{name}: the evidence does not say which one it holds for"
    if asked != proven:
        return f"{name}: shown for {_words(proven)}, asked for {_words(asked)}"
    return None


def _outside(name: str, proven: Any, asked: Any) -> str | None:
    shown, wanted = span(proven), span(asked)
    if shown is None:
        return f"{name}: the evidence does not say in which span it holds"
    if wanted is None:
        return f"{name}: {asked!r} is no span"
    if wanted[0] < shown[0] or wanted[1] > shown[1]:
        return f"{name}: shown from {shown[0]} to {shown[1]}, asked from {wanted[0]} to {wanted[1]}"
    return None


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {value[key]}" for key in sorted(value)) or "nothing"
    return str(value)[:80]
