"""From sealed records to comparison, decision and report; each written atomically and journalled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from counterproof.record import atomic
from counterproof.record.journal import Journal, now_utc
from counterproof.record.store import StudyPaths


@dataclass(frozen=True)
class Judgement:
    """A study's outcome as it stands in comparison.json and decision.json."""

    comparison: dict[str, Any]
    decision: dict[str, Any]


def evaluate(paths: StudyPaths) -> Judgement:
    """Compare and decide without writing anything. Raises EvidenceError when a record was tampered with."""
    from counterproof.decide.rule import decide
    from counterproof.measure.compare import compare
    from counterproof.measure.load import load_study

    study = load_study(paths.folder)
    comparison = compare(study)
    return Judgement(comparison, decide(study.plan, comparison, {"now_utc": now_utc()}))


def judge(paths: StudyPaths) -> Judgement:
    """Evaluate the study, write comparison.json, decision.json and the reports, and journal their hashes."""
    from counterproof.decide.report import write

    found = evaluate(paths)
    journal = Journal(paths.journal)
    journal.append("compared", sha256=atomic.write_json(paths.comparison, found.comparison))
    journal.append(
        "decided",
        sha256=atomic.write_json(paths.decision, found.decision),
        decision=found.decision["decision"],
    )
    write(paths.folder)
    return found


def harm_is_proven(paths: StudyPaths) -> bool:
    """Whether the study should stop before its last block: a hard limit is broken or harm is proven."""
    return bool(evaluate(paths).decision["decision"] == "ROLLBACK")
