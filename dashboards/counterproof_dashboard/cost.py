"""The stage by resource matrix: which cells got better, which worse, and why the others say "not measured"."""

from __future__ import annotations

from typing import Any

import pandas as pd

from counterproof_dashboard import findings, frames, theme
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import NOT_RECORDED, number, visible
from counterproof_dashboard.words import RESOURCE_NAMES

BETTER, WORSE, SAME, ABSENT = "better", "worse", "no clear change", "not measured"
# Everything else is a price: less is better.
_MORE_IS_BETTER = ("quality",)


def table(study: Study) -> pd.DataFrame:
    """`frames.cost_table` with headings that are understood without the record's names."""
    found = frames.cost_table(study)
    names = {frames.heading(key): name for key, name in RESOURCE_NAMES.items()}
    return found.rename(columns=names)


def tones(study: Study) -> pd.DataFrame:
    """For every cell of `table` one of BETTER, WORSE, SAME, ABSENT; the column of stage names is empty."""
    cells = findings.rows(study.comparison.get("cost"))
    shown = table(study)
    found = pd.DataFrame(ABSENT, index=shown.index, columns=shown.columns)
    if shown.empty:
        return found
    found["Stage"] = ""
    places = {stage: row for row, stage in enumerate(shown["Stage"])}
    for cell in cells:
        row = places.get(visible(findings.text(cell.get("stage"))))
        resource = findings.text(cell.get("resource"))
        column = RESOURCE_NAMES.get(resource, frames.heading(resource))
        if row is not None and column in found.columns:
            found.loc[row, column] = tone(cell)
    return found


def tone(cell: dict[str, Any]) -> str:
    """How a cell moved: by its interval where it has one, by its values where it is an exact count."""
    before, after = number(cell.get("baseline")), number(cell.get("candidate"))
    if cell.get("status") != "measured" or before is None or after is None:
        return ABSENT
    low, high = number(cell.get("ci_low")), number(cell.get("ci_high"))
    difference = findings.get(cell, "difference")
    from_zero, to_zero = (number(findings.get(difference, k)) for k in ("ci_low", "ci_high"))
    if low is not None and high is not None:
        way = (low > 1) - (high < 1)
    elif from_zero is not None and to_zero is not None:
        way = (from_zero > 0) - (to_zero < 0)
    else:
        way = (after > before) - (after < before)
    if way == 0:
        return SAME
    more = findings.text(cell.get("resource")) in _MORE_IS_BETTER
    return BETTER if (way > 0) == more else WORSE


def styles(study: Study, mode: str) -> pd.DataFrame:
    """CSS of every cell. The words in the cell say the same."""
    css = {
        BETTER: f"color: {theme.verdict_colour('gain', mode)}; font-weight: 600",
        WORSE: f"color: {theme.verdict_colour('loss', mode)}; font-weight: 600",
        SAME: "",
        ABSENT: f"color: {theme.verdict_colour('no claim', mode)}; font-style: italic",
        "": "font-weight: 600",
    }
    return tones(study).map(lambda found: css[found])


def silences(study: Study) -> pd.DataFrame:
    """Why each cell that was not measured was not."""
    rows = [
        {
            "Stage": visible(findings.text(cell.get("stage"))),
            "Resource": RESOURCE_NAMES.get(findings.text(cell.get("resource")), NOT_RECORDED),
            "Why it was not measured": visible(findings.text(cell.get("reason")) or NOT_RECORDED),
        }
        for cell in findings.rows(study.comparison.get("cost"))
        if tone(cell) == ABSENT
    ]
    return pd.DataFrame(rows)
