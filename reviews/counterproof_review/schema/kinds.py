"""From a shape to JSON Schema. The reader's own shapes are the source, so that schema and reader cannot part.

Besides the shapes of `packet.shape` there are here: Closed (these keys and no others), Open (these keys at least), Const,
Choice, Either and Several. A plain dict is an Open whose keys must all be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from counterproof_review.packet.shape import Number, Shape, Table, Text

JsonSchema = dict[str, Any]
_TYPES: Mapping[type, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    list: "array",
    NoneType: "null",
}


@dataclass(frozen=True)
class Closed:
    """An object with `fields`, perhaps `optional` ones, and no others."""

    fields: Mapping[str, Shape]
    optional: Mapping[str, Shape] = field(default_factory=dict)


@dataclass(frozen=True)
class Open:
    """An object with `fields`, perhaps `optional` ones, and whatever a newer version adds."""

    fields: Mapping[str, Shape]
    optional: Mapping[str, Shape] = field(default_factory=dict)


@dataclass(frozen=True)
class Const:
    """One value."""

    value: Any


@dataclass(frozen=True)
class Choice:
    """One of several texts, or null where `null`."""

    values: tuple[str, ...]
    null: bool = False


@dataclass(frozen=True)
class Either:
    """Any of several shapes."""

    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Several:
    """A list of `least` to `most` values of one shape."""

    value: Shape
    least: int
    most: int


def compile_shape(shape: Shape) -> JsonSchema:
    """The JSON Schema that accepts what the shape accepts. Raises TypeError for something that is no shape."""
    if isinstance(shape, dict):
        return _object(shape, {}, closed=False)
    if isinstance(shape, list):
        return {"type": "array", "items": compile_shape(shape[0])}
    if isinstance(shape, type):
        return {"type": _TYPES[shape]}
    if isinstance(shape, tuple):
        # Every integer is a number, so that "integer" beside "number" says nothing.
        names = {_TYPES[kind] for kind in shape}
        return {"type": sorted(names - {"integer"} if "number" in names else names)}
    if isinstance(shape, Number):
        kind = "integer" if shape.whole else "number"
        return {"type": _nullable(kind, shape.null), "minimum": shape.low, "maximum": shape.high}
    if isinstance(shape, Text):
        return {"type": _nullable("string", shape.null), "pattern": f"^(?:{shape.pattern})$"}
    return _composed(shape)


def _composed(shape: Shape) -> JsonSchema:
    if isinstance(shape, Table):
        return {"type": "object", "additionalProperties": compile_shape(shape.value)}
    if isinstance(shape, Closed | Open):
        return _object(shape.fields, shape.optional, closed=isinstance(shape, Closed))
    if isinstance(shape, Const):
        return {"const": shape.value}
    if isinstance(shape, Choice):
        return {"enum": [*shape.values, *([None] if shape.null else [])]}
    if isinstance(shape, Either):
        return {"anyOf": [compile_shape(one) for one in shape.shapes]}
    if isinstance(shape, Several):
        items = {"type": "array", "items": compile_shape(shape.value)}
        return items | {"minItems": shape.least, "maxItems": shape.most}
    raise TypeError(f"{shape!r} is no shape")


def _object(fields: Mapping[str, Shape], optional: Mapping[str, Shape], *, closed: bool) -> JsonSchema:
    made: JsonSchema = {
        "type": "object",
        "properties": {name: compile_shape(inner) for name, inner in {**fields, **optional}.items()},
        "required": sorted(fields),
    }
    return made | {"additionalProperties": False} if closed else made


def _nullable(kind: str, null: bool) -> str | list[str]:
    return [kind, "null"] if null else kind
