"""Words and numbers as a reader sees them; text from records is made inert here.

Everything that comes from a record passes through `plain` before it reaches a Markdown element.
"""

from __future__ import annotations

import json
import math
import unicodedata
from datetime import UTC, datetime

NOT_RECORDED = "not recorded"
_MARKDOWN = frozenset("\\`*_{}[]()<>#+-.!|$~^:&=\"'@/")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def visible(value: object) -> str:
    """Text with every control, bidirectional and surrogate character spelled out, so that a name shows what it is."""
    return "".join(
        f"\\u{ord(c):04x}" if unicodedata.category(c) in _HIDDEN_CATEGORIES else c for c in str(value)
    )


def plain(value: object) -> str:
    """`visible` text that Markdown (and Streamlit's colour, icon and maths directives) shows letter by letter."""
    return "".join("\\" + c if c in _MARKDOWN else c for c in visible(value))


def spelled(value: object) -> str:
    """A configuration value with its type: 16, 16.0, "16", true and null all look different."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        return visible(json.dumps(value, ensure_ascii=False, sort_keys=True))
    except (TypeError, ValueError):
        return visible(repr(value))


def number(value: object) -> float | None:
    """`value` as a finite float, or None: booleans, text, NaN and infinities are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def significant(value: float, digits: int = 3) -> str:
    """`digits` significant figures, thousands separated, never in exponent form for everyday sizes."""
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= 15 or size < -6:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - size)
    shown = f"{value:,.{decimals}f}"
    return shown


def milliseconds(value: float | None) -> str:
    """A duration given in ms, in the unit that reads best."""
    if value is None:
        return NOT_RECORDED
    if abs(value) >= 10_000:
        return f"{significant(value / 1000)} s"
    if value != 0 and abs(value) < 0.1:
        return f"{significant(value * 1000)} µs"
    return f"{significant(value)} ms"


def size(value: float | None) -> str:
    """A number of bytes in binary units."""
    if value is None:
        return NOT_RECORDED
    scaled, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    for unit in units:
        if abs(scaled) < 1024 or unit == units[-1]:
            return f"{significant(scaled) if unit != 'B' else format(scaled, ',.0f')} {unit}"
        scaled /= 1024
    return NOT_RECORDED


def quantity(value: object, unit: str) -> str:
    """A measured value in its recorded unit ("ms", "bytes", "tok/s", "fraction", ...)."""
    found = number(value)
    if found is None:
        return NOT_RECORDED
    if unit == "ms":
        return milliseconds(found)
    if unit in {"bytes", "B"}:
        return size(found)
    if unit == "fraction" or unit.startswith("share of"):
        return f"{significant(found * 100)} %" if found else "0 %"
    if found == int(found) and abs(found) < 1e15:
        return f"{int(found):,} {visible(unit)}".strip()
    return f"{significant(found)} {visible(unit)}".strip()


def ratio(value: float | None) -> str:
    """A ratio with a multiplication sign: 0.213×, 12.4×."""
    if value is None:
        return NOT_RECORDED
    if 0.5 <= value <= 2:
        return f"{value:.3f}×"
    return f"{significant(value)}×"


def change(value: float | None) -> str:
    """A ratio as a signed change: 0.8 is −20 %, 12 is +1,100 %."""
    if value is None:
        return NOT_RECORDED
    percent = (value - 1) * 100
    sign = "−" if percent < 0 else "+"
    return f"{sign}{significant(abs(percent), 2 if abs(percent) < 10 else 3)} %"


def percent(value: float | None) -> str:
    """A fraction as a percentage: 0.0371 is 3.7 %."""
    return NOT_RECORDED if value is None else f"{significant(value * 100, 2)} %"


def interval(low: float | None, high: float | None) -> str:
    """An interval of a ratio, one side open where it was not recorded."""
    if low is None and high is None:
        return NOT_RECORDED
    return f"{ratio(low) if low is not None else '…'} to {ratio(high) if high is not None else '…'}"


def when(value: object) -> datetime | None:
    """An ISO 8601 time of a record as an aware UTC time, or None."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def day(value: str) -> str:
    """An ISO 8601 time as a day and minute in UTC; other text as it is."""
    found = when(value)
    return value if found is None else f"{found:%Y-%m-%d %H:%M} UTC"


def age(created: datetime | None, now: datetime) -> str:
    """How long ago, in one unit: "3 min", "5 h", "12 d"."""
    if created is None:
        return NOT_RECORDED
    seconds = (now - created).total_seconds()
    if seconds < -60:
        return "in the future (clock?)"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "just now"


def count(amount: int, noun: str, plural: str | None = None) -> str:
    """`1 run`, `2 runs`."""
    return f"{amount:,} {noun if amount == 1 else plural or noun + 's'}"
