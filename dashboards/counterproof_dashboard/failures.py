"""What broke, by itself or on purpose, and what was brought back: rows of the Failures page. None is "not recorded"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from counterproof.decide import faults_words
from counterproof_dashboard import findings
from counterproof_dashboard.data import Study

NOT_RECOVERED = "not recovered"
_FAULT = {
    "fault": "fault",
    "what": "what happened",
    "outcome": "outcome",
    "detected_after_s": "detected after (s)",
    "recovered_after_s": "recovered after (s)",
    "requests_lost": "requests lost",
    "tokens_recomputed": "tokens recomputed",
    "outputs_identical": "same outputs",
    "detail": "detail",
}


def injected(study: Study) -> pd.DataFrame:
    """One row a fault that was injected."""
    rows = findings.rows(study.comparison.get("failures"))
    return _frame([{label: row.get(name) for name, label in _FAULT.items()} for row in rows], _FAULT.values())


def not_survived(study: Study) -> list[str]:
    """Names of injected faults that something was lost to."""
    rows = findings.rows(study.comparison.get("failures"))
    return [str(row.get("fault")) for row in rows if row.get("outcome") == NOT_RECOVERED]


def not_injected(study: Study) -> str:
    """Why no fault is recorded, in the words of the report."""
    return faults_words.faults_reason(study.plan.get("faults"))


def attempts(study: Study) -> pd.DataFrame:
    """One row an attempt that was lost, failed or refused by itself."""
    rows = findings.rows(study.comparison.get("lost_attempts"))
    found = [
        {
            "run": row.get("run"),
            "ended": str(row.get("kind", "")).removeprefix("run_") or None,
            "why": row.get("reason"),
        }
        for row in rows
    ]
    return _frame(found, ("run", "ended", "why"))


def abnormal(study: Study) -> pd.DataFrame:
    """One row an abnormal input and arm."""
    columns = (
        *("input", "arm", "expected", "outcome", "error"),
        *("other request", "ms per token beside it", "ms per token alone"),
    )
    return _frame(list(_abnormal_rows(study)), columns)


def _abnormal_rows(study: Study) -> Iterator[dict[str, Any]]:
    for entry in findings.rows(study.comparison.get("abnormal")):
        arms = entry.get("arms")
        for arm, row in arms.items() if isinstance(arms, dict) else ():
            known = row if isinstance(row, dict) else {}
            same = known.get("companion_identical")
            yield {
                "input": entry.get("case"),
                "arm": arm,
                "expected": entry.get("expected"),
                "outcome": known.get("outcome"),
                "error": known.get("error_type") or known.get("error") or None,
                "other request": None if same is None else ("same answer" if same else "another answer"),
                "ms per token beside it": known.get("companion_gap_ms"),
                "ms per token alone": known.get("undisturbed_gap_ms"),
            }


def _frame(rows: list[dict[str, Any]], columns: Any) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns))
