"""From sealed records to comparison, decision and report; each announced in the journal, then written atomically."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.plan import reserve
from counterproof.record import atomic, canonical
from counterproof.record.journal import Journal, now_utc
from counterproof.record.lock import FileLock
from counterproof.record.store import StudyPaths

LOCK_SECONDS = 120.0


@dataclass(frozen=True)
class Judgement:
    """A study's outcome as it stands in comparison.json and decision.json."""

    comparison: dict[str, Any]
    decision: dict[str, Any]


def evaluate(paths: StudyPaths) -> Judgement:
    """Compare and decide without writing anything. Raises EvidenceError when a record was tampered with."""
    from counterproof.decide.deploy.context import context_of
    from counterproof.decide.rule import decide
    from counterproof.measure.compare import compare
    from counterproof.measure.load import load_study

    study = load_study(paths.folder)
    comparison = compare(study)
    sealed = [e["time_utc"] for e in study.verified.journal if e["kind"] == "run_sealed"]
    now = now_utc()
    context = {
        "now_utc": now,
        "evidence_utc": max(sealed, default=study.plan["created_utc"]),
        **context_of(paths, study.plan, study.verified.plan_sha256, now),
    }
    return Judgement(comparison, decide(study.plan, comparison, context))


def judge(paths: StudyPaths) -> Judgement:
    """Evaluate the study, write comparison.json, decision.json and the reports, and journal their hashes.

    What an earlier judgement wrote is removed first, and each hash is journalled before its file appears. So a
    harness that is killed in between leaves files that are missing, never ones that contradict the journal.
    """
    from counterproof.decide.report import write

    with FileLock(paths.folder / ".judge.lock", wait_s=LOCK_SECONDS, what=f"the judgement of {paths.name}"):
        found = evaluate(paths)
        journal = Journal(paths.journal)
        for path in (*paths.reports, paths.decision, paths.comparison):
            path.unlink(missing_ok=True)
        _publish(journal, "compared", paths.comparison, found.comparison)
        _publish(journal, "decided", paths.decision, found.decision, decision=found.decision["decision"])
        write(paths.folder)
        hashes = {path.name: canonical.sha256_file(path) for path in paths.reports}
        journal.append("reported", files=hashes)
    return found


def _publish(journal: Journal, kind: str, path: Path, content: dict[str, Any], **facts: Any) -> None:
    data = canonical.pretty(content)
    journal.append(kind, sha256=canonical.sha256_bytes(data), **facts)
    atomic.write_bytes(path, data)


def why_extend(paths: StudyPaths) -> str | None:
    """The reason to call up reserve blocks, None if there is none (see plan/reserve.py)."""
    found = evaluate(paths)
    return None if found.decision["decision"] == "ROLLBACK" else reserve.why_extend(found.comparison)


def must_stop(paths: StudyPaths) -> bool:
    """Whether the study should stop before its last block: a hard limit is broken, harm is proven, or the blocks
    that are left would be futile."""
    decision = evaluate(paths).decision
    futile = any(step["inputs"].get("futile") for step in decision["trace"])
    return bool(decision["decision"] == "ROLLBACK" or futile)
