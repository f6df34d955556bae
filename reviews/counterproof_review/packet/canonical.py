"""Canonical JSON, and a reader that accepts nothing else.

Canonical form: UTF-8, keys sorted by code point, no white space, non-ASCII unescaped, the shortest
decimal that gives back the same double, one newline at the end. One content has one encoding, so that a digest
names the content and a changed byte can never hide in an equal value.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.layout import MAX_JSON_BYTES, MAX_JSON_DEPTH

MAX_INTEGER = 1 << 53  # above it other readers round silently
_BOM = b"\xef\xbb\xbf"
_LARGE = re.compile(r"[0-9](?:[0-9]{15}|[eE])")
# A string that does not end matches up to the end of the text: otherwise every quote in it would be tried as a
# beginning, each time to the end, which takes hours for a few megabytes.
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def encode(value: object, path: str = "") -> bytes:
    """The canonical bytes of `value` (None, bool, int, float, str, list, dict with str keys).

    Raises PacketError E_JSON for NaN, infinity, an integer beyond 2^53, a lone surrogate, nesting beyond
    the limit or any other type.
    """
    _check(value, path, 0)
    return _dump(value, path)


def decode(data: bytes, path: str = "", *, canonical: bool = True) -> Any:
    """Read strict JSON: no BOM, no duplicate key, no NaN, infinity or number that overflows, no deep nesting.

    With `canonical` the bytes must be the canonical ones (E_CANONICAL otherwise). Raises PacketError E_JSON.
    """
    if len(data) > MAX_JSON_BYTES:
        raise PacketError("E_LIMIT", f"more than {MAX_JSON_BYTES} bytes of JSON", path=path)
    value = _parse(_text(data, path), path)
    # What was parsed has only finite numbers in range and no deep nesting; lone surrogates show here.
    if _dump(value, path) != data and canonical:
        raise PacketError("E_CANONICAL", "the JSON is not in canonical form", path=path)
    return value


def decode_object(data: bytes, path: str = "") -> dict[str, Any]:
    """As `decode`, for a file that must hold one object."""
    value = decode(data, path)
    if not isinstance(value, dict):
        raise PacketError("E_JSON", "expected an object", path=path)
    return value


def _dump(value: object, path: str) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        return text.encode("utf-8", "strict") + b"\n"
    except UnicodeEncodeError:
        raise PacketError("E_JSON", "has a lone surrogate", path=path) from None


def _text(data: bytes, path: str) -> str:
    if data.startswith(_BOM):
        raise PacketError("E_JSON", "starts with a byte order mark", path=path)
    try:
        text = data.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise PacketError("E_JSON", f"is not UTF-8 at byte {error.start}", path=path) from None
    if _depth(text) > MAX_JSON_DEPTH:
        raise PacketError("E_JSON", f"is nested deeper than {MAX_JSON_DEPTH}", path=path)
    return text


def _depth(text: str) -> int:
    """Deepest nesting of brackets outside strings, found before any recursive parser sees the text."""
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        mark = match.group()
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest


def _parse(text: str, path: str) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise PacketError("E_JSON", "has a duplicate key", path=path)
        return found

    def constant(name: str) -> Any:
        raise PacketError("E_JSON", f"{name} is not a number of JSON", path=path)

    def integer(digits: str) -> int:
        if len(digits) > 17 or abs(int(digits)) > MAX_INTEGER:
            raise PacketError("E_JSON", "has an integer beyond 2^53", path=path)
        return int(digits)

    def real(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            raise PacketError("E_JSON", f"{digits[:20]} overflows a double", path=path)
        return number

    # Numbers out of range need 16 digits in a row or an exponent; without them the parser's own are right.
    careful = _LARGE.search(text) is not None
    try:
        return json.loads(
            text,
            object_pairs_hook=pairs,
            parse_constant=constant,
            parse_int=integer if careful else None,
            parse_float=real if careful else None,
        )
    except json.JSONDecodeError as error:
        raise PacketError("E_JSON", f"{error.msg} at character {error.pos}", path=path) from None
    except RecursionError:
        raise PacketError("E_JSON", "is nested too deeply", path=path) from None


def _check(value: object, path: str, depth: int) -> None:
    if depth > MAX_JSON_DEPTH:
        raise PacketError("E_JSON", f"is nested deeper than {MAX_JSON_DEPTH}", path=path)
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise PacketError("E_JSON", "has an integer beyond 2^53", path=path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise PacketError("E_JSON", "has a number that is not finite", path=path)
    elif isinstance(value, str):
        return
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, path, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise PacketError("E_JSON", f"has a key of type {type(key).__name__}", path=path)
            _check(item, path, depth + 1)
    else:
        raise PacketError("E_JSON", f"cannot hold a {type(value).__name__}", path=path)
