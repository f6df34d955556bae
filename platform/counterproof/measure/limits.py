"""Hard limits: what ends a change without statistics (out of memory, a candidate that crashes, wrong output)."""

from __future__ import annotations

import re
from typing import Any

from counterproof.measure.divergence import Divergence
from counterproof.measure.equivalence import Equivalence
from counterproof.measure.load import StudyData
from counterproof.record.store import RunKey

OUT_OF_MEMORY = re.compile(r"out[ _]of[ _]memory|\boom\b|MemoryError|cannot allocate memory", re.IGNORECASE)
CRASHES = 2


def hard_limits(
    study: StudyData, equivalence: Equivalence, candidate: Divergence | None
) -> list[dict[str, Any]]:
    """Each limit as {"limit", "broken": true | false | null, "detail"}; null: nothing was there to judge."""
    if "candidate" not in study.arms:
        return []
    limits = [_out_of_memory(study), _crash_loop(study)]
    if (study.plan.get("factor") or {}).get("lossless"):
        limits.append(_wrong_output(equivalence, candidate))
    return limits


def _out_of_memory(study: StudyData) -> dict[str, Any]:
    runs = [run for run in study.runs.values() if run.arm == "candidate"]
    hits = [run.name for run in runs if any(_says_so(event) for event in run.events)]
    hits += [event["run"] for event in _failed(study) if _says_so(event)]
    broken = bool(hits) if runs or hits else None
    return {
        "limit": "out_of_memory",
        "broken": broken,
        "detail": ", ".join(hits) or "none in the candidate's runs",
    }


def _says_so(event: dict[str, Any]) -> bool:
    texts = (event.get(name) for name in ("kind", "message", "reason", "detail"))
    details = event.get("details") or []
    return any(OUT_OF_MEMORY.search(str(text)) for text in (*texts, *details) if text)


def _crash_loop(study: StudyData) -> dict[str, Any]:
    """The candidate failed at least twice in timed places where it was never sealed."""
    failed = [RunKey.parse(e["run"]) for e in _failed(study)]
    sealed = {(run.block, run.arm) for run in study.runs.values()}
    lost = [key for key in failed if (key.block, key.arm) not in sealed and key.block is not None]
    broken = len(lost) >= CRASHES
    detail = f"{len(failed)} failed attempts of the candidate, {len(lost)} without a sealed run"
    return {"limit": "crash_loop", "broken": broken, "detail": detail}


def _failed(study: StudyData) -> list[dict[str, Any]]:
    events = [
        e for e in study.verified.journal if e["kind"] == "run_failed" and isinstance(e.get("run"), str)
    ]
    return [e for e in events if RunKey.parse(e["run"]).arm == "candidate"]


def _wrong_output(equivalence: Equivalence, candidate: Divergence | None) -> dict[str, Any]:
    problems = []
    if equivalence.equal is False:
        problems.append(f"invariant mode: {equivalence.reason}")
    if candidate is not None and candidate.wrong:
        problems.append(f"{candidate.wrong} of {candidate.compared} timed outputs differ beyond near ties")
    nothing = equivalence.equal is None and (candidate is None or candidate.compared == 0)
    broken = None if nothing and not problems else bool(problems)
    return {
        "limit": "wrong_output",
        "broken": broken,
        "detail": "; ".join(problems) or "no wrong output found",
    }
