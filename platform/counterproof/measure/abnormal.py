"""Abnormal inputs: what both arms did with each, and whether the candidate is the worse host to them.

A baseline's own weakness is recorded and refutes nothing; a candidate that fails where the baseline did not, or that
lets an abnormal input change somebody else's answer, must not be promoted on the strength of its speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterproof.measure.check import Check
from counterproof.measure.load import StudyData

NAME = "abnormal_inputs"
NOT_MEASURED = "not measured"
_BAD = ("failed", "hung", "crashed")


def abnormal_table(study: StudyData) -> list[dict[str, Any]]:
    """One entry a case: what was expected, and each arm's row; empty where nothing was sent."""
    arms = {
        arm: {row["case"]: row for row in run.abnormal} for arm, run in study.probes.items() if run.abnormal
    }
    if not arms:
        return []
    names = list(next(iter(arms.values())))
    return [
        {
            "case": name,
            "expected": next(rows[name]["expected"] for rows in arms.values() if name in rows),
            "arms": {arm: rows.get(name) for arm, rows in arms.items()},
        }
        for name in names
    ]


def check_abnormal(study: StudyData, threshold: float | None) -> list[Check]:
    """At most one check; none for a study without probes. `threshold`: see measure/divergence.py."""
    plan = study.plan.get("probes")
    if not plan:
        return []
    wanted = [arm for arm in plan["arms"] if arm in study.plan["arms"]]
    if any(arm not in study.probes or not study.probes[arm].abnormal for arm in wanted):
        return [Check(NAME, None, "the abnormal inputs were not sent to every arm")]
    return [judge_abnormal(abnormal_table(study), threshold)]


def judge_abnormal(table: list[dict[str, Any]], threshold: float | None) -> Check:
    """The candidate against the baseline, case by case."""
    problems, odd = [], []
    for entry in table:
        base, other = entry["arms"].get("baseline"), entry["arms"].get("candidate")
        if base is not None and base["as_expected"] is False:
            odd.append(f"baseline {entry['case']}: {base['outcome']}")
        if base is None or other is None:
            continue
        if _outcome_worse(base, other):
            problems.append(f"{entry['case']}: {other['outcome']} ({other['error'] or 'no error'})")
        if _damaged(other, threshold) and not _damaged(base, threshold):
            problems.append(f"{entry['case']}: another request's answer changed")
    facts = {"cases": len(table), "unexpected_in_baseline": odd}
    if problems:
        return Check(NAME, False, f"the candidate is worse: {'; '.join(problems[:3])}", facts)
    rest = f"; not as expected: {'; '.join(odd[:3])}" if odd else ""
    return Check(NAME, True, f"{len(table)} cases, no other request was harmed{rest}", facts)


def _outcome_worse(base: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if NOT_MEASURED in (base["outcome"], other["outcome"]):
        return bool(other["outcome"] == NOT_MEASURED and base["outcome"] != NOT_MEASURED)
    if other["outcome"] in _BAD:
        return bool(base["outcome"] not in _BAD)
    return bool(base["as_expected"] is True and other["as_expected"] is False)


def _damaged(row: Mapping[str, Any], threshold: float | None) -> bool:
    """Whether the companion said something else, beyond a near tie that rounding may tip."""
    if row.get("companion_identical") is not False:
        return False
    margin = row.get("companion_margin")
    return bool(margin is None or threshold is None or margin >= threshold)
