"""What limits a study's word whatever its numbers are: exploratory, calibration, invalid, extended, not complete."""

from __future__ import annotations

from dataclasses import dataclass

from counterproof_dashboard import data, findings
from counterproof_dashboard.data import Study
from counterproof_dashboard.text import NOT_RECORDED, count, number
from counterproof_dashboard.words import check_name

EXPLORATORY = "exploratory"
CALIBRATION = "calibration"
INVALID = "INVALID"
EXTENDED = "extended"


@dataclass(frozen=True)
class Mark:
    """A short word for a label, and the sentence behind it. Text is not escaped."""

    word: str
    sentence: str


@dataclass(frozen=True)
class Extension:
    """Registered reserve blocks that were called up: how many blocks the study then had, and why."""

    blocks: int | None
    reason: str


def extensions(study: Study) -> list[Extension]:
    """The extensions that the comparison lists, in order. A comparison of an older version lists none."""
    found = []
    for row in findings.rows(study.comparison.get("extensions")):
        blocks = number(row.get("blocks"))
        found.append(Extension(None if blocks is None else int(blocks), findings.text(row.get("reason"))))
    return found


def marks(study: Study) -> list[Mark]:
    """Every mark of the study, the gravest first. None for a plain registered study that is valid."""
    found = []
    if study.compared and findings.valid(study) is False:
        failed = [check_name(c.name) for c in findings.checks(study) if c.passed is False]
        why = f" Failed: {', '.join(failed)}." if failed else ""
        found.append(Mark(INVALID, f"The evidence is invalid, so it speaks for neither side.{why}"))
    if study.plan.get("calibration") is True:
        found.append(
            Mark(CALIBRATION, "Calibration: this study measures noise and can never claim an effect.")
        )
    if study.plan.get("exploratory") is True:
        found.append(Mark(EXPLORATORY, "Exploratory: this study can never be a claim."))
    called = extensions(study)
    if called:
        found.append(Mark(EXTENDED, _extended(study, called)))
    if study.status in {data.LOST, data.RUNNING} and study.comparison:
        found.append(Mark(study.status, "Blocks are left: a claim needs all of them."))
    return found


def _extended(study: Study, called: list[Extension]) -> str:
    planned = number(study.plan.get("blocks"))
    steps = [NOT_RECORDED if planned is None else f"{int(planned)}"]
    steps += [NOT_RECORDED if extension.blocks is None else str(extension.blocks) for extension in called]
    reasons = "; ".join(extension.reason or f"reason {NOT_RECORDED}" for extension in called)
    return (
        f"Reserve blocks were called up {count(len(called), 'time')}, from {' to '.join(steps)} blocks, by the "
        f"registered rule that sees the two equal arms alone: {reasons}."
    )


def label(study: Study) -> str:
    """The marks as one word each, for labels: ` (INVALID, exploratory)`; empty without any."""
    words = [mark.word for mark in marks(study)]
    return f" ({', '.join(words)})" if words else ""
