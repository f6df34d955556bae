"""Shapes of JSON documents: which keys, which types, which ranges, all the way down.

A shape is a type or a tuple of types (matched exactly: true is no integer), a Number with bounds, a Text with a
pattern, a one-item list (every item has that shape), a dict (these keys must be there) or a Table (any key).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from counterproof_review.packet.errors import PacketError

Shape = Any


@dataclass(frozen=True)
class Number:
    """A number from `low` to `high`, both included. `whole`: an integer. `null`: may be missing as null."""

    low: float
    high: float
    whole: bool = False
    null: bool = False


@dataclass(frozen=True)
class Text:
    """A string that matches `pattern` as a whole. `null`: may be null."""

    pattern: str
    null: bool = False


@dataclass(frozen=True)
class Table:
    """An object with any keys, whose values all have one shape."""

    value: Shape


HEX64 = Text(r"[0-9a-f]{64}")
OPAQUE = Text(r"[0-9a-f]{8}")


def unknown_fields(value: object, shape: Shape, path: str) -> list[str]:
    """Hold `value` against `shape`; return the fields that the shape does not know, dotted.

    Raises PacketError E_SCHEMA naming the first place that does not fit.
    """
    return list(_check(value, shape, "", path))


def _check(value: object, shape: Shape, where: str, path: str) -> Iterator[str]:
    if isinstance(shape, dict):
        yield from _object(value, shape, where, path)
    elif isinstance(shape, Table):
        if not isinstance(value, dict):
            raise _misfit(value, where, path)
        for key, item in value.items():
            yield from _check(item, shape.value, f"{where}.{key}", path)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise _misfit(value, where, path)
        for index, item in enumerate(value):
            yield from _check(item, shape[0], f"{where}[{index}]", path)
    elif not _fits(value, shape):
        raise _misfit(value, where, path)


def _object(value: object, shape: Mapping[str, Shape], where: str, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        raise _misfit(value, where, path)
    for key, inner in shape.items():
        if key not in value:
            raise PacketError("E_SCHEMA", f"lacks the field {f'{where}.{key}'.lstrip('.')}", path=path)
        yield from _check(value[key], inner, f"{where}.{key}", path)
    for key in sorted(set(value) - set(shape)):
        yield f"{where}.{key}".lstrip(".")


def _fits(value: object, shape: Shape) -> bool:
    if isinstance(shape, Number):
        if value is None:
            return shape.null
        kinds = (int,) if shape.whole else (int, float)
        return type(value) in kinds and shape.low <= value <= shape.high  # type: ignore[operator]
    if isinstance(shape, Text):
        if value is None:
            return shape.null
        return isinstance(value, str) and re.fullmatch(shape.pattern, value) is not None
    allowed = shape if isinstance(shape, tuple) else (shape,)
    return (NoneType if value is None else type(value)) in allowed


def _misfit(value: object, where: str, path: str) -> PacketError:
    shown = repr(value)[:40]
    return PacketError("E_SCHEMA", f"{where.lstrip('.') or 'the document'} may not be {shown}", path=path)
