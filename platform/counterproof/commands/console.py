"""Plain output helpers: everything a command prints to standard output is text that survives a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from counterproof.errors import CounterproofError


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns padded to their widest cell; a cell is one line, whatever it holds."""
    lines = [
        tuple(header),
        *(tuple("" if cell is None else one_line(str(cell)) for cell in row) for row in rows),
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
    )


def one_line(text: str) -> str:
    """`text` with everything escaped that a terminal would act on or not show: texts of others get printed here."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable(text: str) -> str:
    """As `one_line`, line by line."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def show_error(error: CounterproofError) -> None:
    """One clear line, then the details, on standard error."""
    print(printable(f"error: {error}"), file=sys.stderr)
    for detail in error.details:
        print(printable(f"  {detail}"), file=sys.stderr)


def note(text: str) -> None:
    """A remark that is no result: standard error."""
    print(printable(text), file=sys.stderr, flush=True)


def percent(ratio: float | None) -> str:
    """A ratio as a signed percentage, e.g. -74.1 %."""
    return "not measured" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def number(value: float | None, unit: str = "") -> str:
    """A number with at most four significant figures, or `not measured`."""
    if value is None:
        return "not measured"
    text = f"{value:.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    return f"{text} {unit}".strip()
