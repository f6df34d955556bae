"""The configuration difference of two arms, leaf by leaf and type-strict, recomputed from the plan.

16, 16.0, "16", true, null and "not there" are six different values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from counterproof_dashboard.data import Study
from counterproof_dashboard.findings import get, rows, text
from counterproof_dashboard.text import spelled

ABSENT = "(not there)"


@dataclass(frozen=True)
class Difference:
    """One configuration path with both values spelled out."""

    path: str
    baseline: str
    candidate: str
    differs: bool


@dataclass(frozen=True)
class ConfigDiff:
    """All leaves, and whether the single-variable rule holds. `verdict` says it in words."""

    leaves: tuple[Difference, ...]
    holds: bool | None
    verdict: str

    @property
    def differing(self) -> list[Difference]:
        return [leaf for leaf in self.leaves if leaf.differs]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted path. Lists and empty objects are leaves. A key with a dot joins as it is."""
    if not isinstance(value, Mapping) or not value:
        return {prefix: value} if prefix else {}
    leaves: dict[str, Any] = {}
    for key, inner in value.items():
        leaves.update(flatten(inner, f"{prefix}.{key}" if prefix else str(key)))
    return leaves


def compare_leaves(baseline: Any, candidate: Any) -> tuple[Difference, ...]:
    """Every leaf of two configurations, those that differ first."""
    left, right = flatten(baseline), flatten(candidate)
    found = []
    for path in sorted(left.keys() | right.keys()):
        a, b = value_of(left, path), value_of(right, path)
        found.append(Difference(path, a, b, a != b))
    return tuple(sorted(found, key=lambda leaf: (not leaf.differs, leaf.path)))


def value_of(leaves: Mapping[str, Any], path: str) -> str:
    """The leaf spelled out, or that it is not there."""
    return spelled(leaves[path]) if path in leaves else ABSENT


def arm_diff(study: Study) -> ConfigDiff:
    """The study's baseline against its candidate, checked against the declared factor."""
    arms = study.plan.get("arms")
    baseline, candidate = get(arms, "baseline", "config"), get(arms, "candidate", "config")
    if not isinstance(baseline, dict):
        return ConfigDiff((), None, "The plan does not record the arms' configurations.")
    if not isinstance(candidate, dict):
        leaves = compare_leaves(baseline, baseline)
        if study.plan.get("calibration") is True:
            return ConfigDiff(leaves, None, "A calibration study has no candidate: nothing was changed.")
        return ConfigDiff(leaves, False, "The plan has no candidate configuration.")
    leaves = compare_leaves(baseline, candidate)
    changed = [leaf.path for leaf in leaves if leaf.differs]
    factor = text(get(study.plan, "factor", "path"))
    if len(changed) == 1 and changed[0] == factor:
        return ConfigDiff(leaves, True, f"Exactly one key differs: {factor}, the declared factor.")
    if len(changed) == 1:
        declared = factor or "not recorded"
        return ConfigDiff(
            leaves, False, f"One key differs, {changed[0]}, but the declared factor is {declared}."
        )
    return ConfigDiff(leaves, False, f"{len(changed)} keys differ instead of exactly one.")


def recorded_differences(study: Study, kind: str) -> list[Difference]:
    """Differences that the comparison lists under `kind`: effective, environment or counters."""
    found = []
    for row in rows(get(study.comparison, "diffs", kind)):
        path = text(row.get("path")) or text(row.get("field")) or text(row.get("counter")) or "not recorded"
        a, b = value_of(row, "baseline"), value_of(row, "candidate")
        found.append(Difference(path, a, b, a != b))
    return found


def undeclared(study: Study) -> list[str]:
    """Paths that moved although the factor did not declare them beforehand."""
    listed = get(study.comparison, "diffs", "undeclared")
    found = [item if isinstance(item, str) else text(get(item, "path")) for item in listed or []]
    return [path for path in found if path]
