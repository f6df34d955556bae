"""Strict, canonical JSON."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterproof_review.packet import canonical
from counterproof_review.packet.errors import PacketError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def refusal(data: bytes, *, canonical_only: bool = False) -> str:
    with pytest.raises(PacketError) as caught:
        canonical.decode(data, "x.json", canonical=canonical_only)
    return caught.value.code


@given(VALUES)
def test_every_value_comes_back_from_its_canonical_bytes(value: object) -> None:
    data = canonical.encode(value)
    back = canonical.decode(data)
    assert canonical.encode(back) == data
    assert json.loads(data) == value


@given(st.dictionaries(TEXT, SCALARS, max_size=6), st.randoms())
def test_the_order_of_keys_does_not_matter(value: dict[str, object], random_: object) -> None:
    items = list(value.items())
    random_.shuffle(items)  # type: ignore[attr-defined]
    assert canonical.encode(dict(items)) == canonical.encode(value)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a":{"b":1,"b":1}}',
        '{"a":NaN}',
        '{"a":Infinity}',
        '{"a":-Infinity}',
        '{"a":1e400}',
        '{"a":-1e400}',
        '{"a":9007199254740993}',
        '{"a":-9007199254740993}',
        '{"a":' + "9" * 5000 + "}",
        "[" * 33 + "]" * 33,
        "[" * 100_000,
        '{"a":"\\ud800"}',
        '{"\\udc00":1}',
        "{'a':1}",
        '{"a":1,}',
        '{"a":1} x',
        "",
        '{"a":01}',
        '{"a":"\t"}',
        "// comment\n{}",
    ],
)
def test_strict_json(text: str) -> None:
    assert refusal(text.encode()) == "E_JSON"


def test_byte_order_marks_and_other_encodings() -> None:
    assert refusal(b"\xef\xbb\xbf{}") == "E_JSON"
    assert refusal('{"a":"x"}'.encode("utf-16")) == "E_JSON"
    assert refusal(b'{"a":"\xff"}') == "E_JSON"
    assert refusal(b'{"a":"\xc0\xaf"}') == "E_JSON"  # overlong


@pytest.mark.parametrize(
    "data",
    [
        b'{"b":1,"a":2}\n',
        b'{"a": 1}\n',
        b'{"a":1}',
        b'{"a":1}\n\n',
        b'{"a":1.0e0}\n',
        b'{"a":1.00}\n',
        b'{"a":"\\u0041"}\n',
        b'{"a":"\\u00e9"}\n',
        b' {"a":1}\n',
        b'{"a":1E5}\n',
    ],
)
def test_another_encoding_of_the_same_content(data: bytes) -> None:
    assert canonical.decode(data, canonical=False) is not None
    assert refusal(data, canonical_only=True) == "E_CANONICAL"


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 2**53 + 1, "\ud800", {1: 2}, {"a": {3}}, b"x", object()]
)
def test_what_cannot_be_written(value: object) -> None:
    with pytest.raises(PacketError, match="E_JSON"):
        canonical.encode({"a": value} if not isinstance(value, dict) else value)


def test_integers_and_floats_stay_apart() -> None:
    assert canonical.encode([1, 1.0, True]) == b"[1,1.0,true]\n"
    assert [type(v) for v in canonical.decode(b"[1,1.0,true]\n")] == [int, float, bool]


def test_brackets_inside_strings_are_not_nesting() -> None:
    value = {"a": '[{"\\' * 100}
    assert canonical.decode(canonical.encode(value)) == value


def test_too_much_json() -> None:
    assert refusal(b'"' + b"a" * (5 << 20) + b'"') == "E_LIMIT"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("end", ["", "\\"])
def test_a_string_of_quotes_without_an_end_is_read_once(end: str) -> None:
    """A bracket counter that tries every quote as a beginning takes a minute for 60,000 of them, and days here."""
    assert refusal(('{"a":"' + '\\"' * 1_900_000 + end).encode()) == "E_JSON"
