"""Numbers are readable, and text from records cannot act."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from counterproof_dashboard import text

NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "value, shown",
    [
        (0.0, "0 ms"),
        (12.345, "12.3 ms"),
        (1234.5, "1,234 ms"),
        (12_345.0, "12.3 s"),
        (0.0123, "12.3 µs"),
        (None, "not recorded"),
    ],
)
def test_durations_take_the_unit_that_reads_best(value: float | None, shown: str) -> None:
    assert text.milliseconds(value) == shown


@pytest.mark.parametrize(
    "value, unit, shown",
    [
        (1_843_200, "bytes", "1.76 MiB"),
        (0, "bytes", "0 B"),
        (5 * 2**30, "bytes", "5.00 GiB"),
        (0.1667, "fraction", "16.7 %"),
        (0, "fraction", "0 %"),
        (1.0, "share of requests", "100 %"),
        (5050, "tokens", "5,050 tokens"),
        (float("nan"), "ms", "not recorded"),
        (True, "ms", "not recorded"),
        ("12", "ms", "not recorded"),
    ],
)
def test_quantities(value: object, unit: str, shown: str) -> None:
    assert text.quantity(value, unit) == shown


@pytest.mark.parametrize(
    "ratio, shown, changed",
    [
        (0.5, "0.500×", "−50.0 %"),
        (1.0, "1.000×", "+0 %"),
        (0.0497, "0.0497×", "−95.0 %"),
        (12.0, "12.0×", "+1,100 %"),
    ],
)
def test_ratios(ratio: float, shown: str, changed: str) -> None:
    assert text.ratio(ratio) == shown
    assert text.change(ratio) == changed


def test_a_missing_number_is_said_and_never_zero() -> None:
    assert {text.ratio(None), text.change(None), text.size(None), text.percent(None)} == {"not recorded"}
    assert text.interval(None, None) == "not recorded"
    assert text.interval(0.9, None) == "0.900× to …"


@pytest.mark.parametrize(
    "past, shown",
    [
        (timedelta(seconds=5), "just now"),
        (timedelta(minutes=3), "3 min"),
        (timedelta(hours=5), "5 h"),
        (timedelta(days=12, hours=3), "12 d"),
        (timedelta(hours=-2), "in the future (clock?)"),
    ],
)
def test_age(past: timedelta, shown: str) -> None:
    assert text.age(NOW - past, NOW) == shown
    assert text.age(None, NOW) == "not recorded"


def test_times_of_records_are_utc_or_nothing() -> None:
    assert text.when("2026-06-01T00:00:00Z") == NOW
    assert text.when("2026-06-01T02:00:00+02:00") == NOW
    assert text.when("yesterday") is None
    assert text.when(5) is None


def test_configuration_values_of_different_types_look_different() -> None:
    values = [16, 16.0, "16", True, "true", None, "null", [], {}, "[]", float("nan")]
    shown = [text.spelled(value) for value in values]
    assert len(set(shown)) == len(values), shown


def test_hidden_characters_are_spelled_out() -> None:
    assert text.visible("a\u202eb\x00c\u200bd\n") == "a\\u202eb\\u0000c\\u200bd\\u000a"
    assert text.visible("日本語 ñ 😀") == "日本語 ñ 😀"


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "![x](https://example.org/x.png)",
        ":red[x] :material/home: :smile: $x$ **b** `c` # h",
        "https://example.org www.example.org",
        "\\<b>\\",
        "| a | b |\n|---|---|\n# title",
    ],
)
def test_hostile_text_stays_text_in_markdown(hostile: str) -> None:
    _assert_inert(hostile)


@given(st.text(max_size=60))
def test_any_text_stays_text_in_markdown(anything: str) -> None:
    _assert_inert(anything)


def _assert_inert(anything: str) -> None:
    """An independent CommonMark parser finds nothing but the text itself, letter by letter."""
    shown = text.visible(anything)
    tokens = [
        t
        for block in MarkdownIt("commonmark").parse(f"x{text.plain(anything)}x")
        for t in block.children or []
    ]
    assert {token.type for token in tokens} <= {"text", "text_special"}, tokens
    assert "".join(token.content for token in tokens) == f"x{shown}x"
    for directive in (":red[", ":material/", "$x$"):
        assert directive not in text.plain(anything)
