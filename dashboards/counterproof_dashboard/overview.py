"""The table of all studies: one row each, words for what is not there, nothing hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote

import pandas as pd

from counterproof_dashboard import data, findings, headline, marks
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import NOT_RECORDED, age, count, interval, ratio, visible, when
from counterproof_dashboard.words import STATUS_WORDS

COLUMNS = (
    # What a narrow window cuts off stands last.
    "study",
    "open",
    "status",
    "evidence",
    "verdict",
    "decision",
    "effect",
    "metric",
    "age",
    "kind",
    "experiment",
)
NOTHING = "–"
_EVIDENCE = {True: "valid", False: "INVALID", None: NOT_RECORDED}


def table(studies: Sequence[Study], now: datetime) -> pd.DataFrame:
    """One row a study with COLUMNS, all text, in the order given."""
    return pd.DataFrame([_row(study, now) for study in studies], columns=list(COLUMNS))


def _row(study: Study, now: datetime) -> dict[str, str]:
    shown = study.compared
    effect = findings.primary_effect(study) if shown else None
    # A dash: there can be nothing yet or any more. Words: there should be something, and the record lacks it.
    absent = NOT_RECORDED if shown or study.status == data.OTHER_SCHEMA else NOTHING
    row = {
        "study": visible(study.name),
        "open": f"/compare?study={quote(study.name, safe='')}",
        "experiment": visible(findings.text(study.plan.get("experiment")) or NOT_RECORDED),
        "status": study.status,
        "evidence": _EVIDENCE[findings.valid(study)] if shown else absent,
        "metric": visible(effect.name) if effect else absent,
        "effect": f"{ratio(effect.ratio)} ({interval(effect.ci_low, effect.ci_high)})" if effect else absent,
        "verdict": visible(findings.verdict(study) or absent),
        "decision": visible(findings.decision(study) or absent),
        "age": age(when(study.plan.get("created_utc")), now),
        "kind": kind(study),
    }
    if shown and findings.valid(study) is False:
        # Invalid evidence speaks for neither side; its numbers stand on the Compare page beside the failed checks.
        row.update(effect=NOTHING, verdict="none: invalid")
    return row


def newest_first(studies: Sequence[Study]) -> list[Study]:
    """By the plan's time, newest first; studies without one come last, by name."""
    dated = [(when(study.plan.get("created_utc")), study) for study in studies]
    known = sorted(
        (pair for pair in dated if pair[0]), key=lambda pair: (pair[0], pair[1].name), reverse=True
    )
    return [study for _, study in known] + [study for created, study in dated if created is None]


def kind(study: Study) -> str:
    """Whether the study was registered for a claim."""
    if study.plan.get("calibration") is True:
        return "calibration"
    exploratory = findings.flag(study.plan.get("exploratory"))
    word = {True: "exploratory", False: "registered", None: NOT_RECORDED}[exploratory]
    called = marks.extensions(study)
    return f"{word}, extended to {called[-1].blocks or NOT_RECORDED} blocks" if called else word


def summary(studies: Sequence[Study]) -> str:
    """`12 studies: 9 complete, 1 running, 2 refused.`"""
    tally = Counter(study.status for study in studies)
    parts = [f"{tally[status]} {status}" for status in data.STATUSES if tally[status]]
    return f"{count(len(studies), 'study', 'studies')}: {', '.join(parts)}."


def fits(study: Study, wanted: str | None) -> bool:
    """Whether every word of the filter occurs in the study's name, experiment, verdict, decision or kind."""
    said = [
        study.name,
        findings.text(study.plan.get("experiment")),
        study.status,
        findings.verdict(study) or "",
        findings.decision(study) or "",
        kind(study),
    ]
    text = " ".join(said).casefold()
    return all(word in text for word in (wanted or "").casefold().split())


def why(study: Study) -> str:
    """Why a study is not complete, with the file named and what to do."""
    sentence = f"{study.status}: {STATUS_WORDS.get(study.status, '')}."
    if study.problems:
        sentence += f" {'; '.join(study.problems)}."
    if study.status == data.LOST and study.plan:
        sentence += f" Continue it with: {headline.resume(study)}"
    return sentence
