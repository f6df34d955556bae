"""Differences between two flat mappings, leaf by leaf and type-strict: 16, 16.0, "16" and true all differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ABSENT = "(absent)"


@dataclass(frozen=True)
class Difference:
    """One leaf that differs. `ABSENT` stands for a leaf that one side does not have, which is not null."""

    path: str
    baseline: Any
    candidate: Any

    def __str__(self) -> str:
        return f"{self.path}: {_show(self.baseline)} -> {_show(self.candidate)}"

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "baseline": self.baseline, "candidate": self.candidate}


def differences(
    baseline: Mapping[str, Any], candidate: Mapping[str, Any], excepted: Iterable[str] = ()
) -> list[Difference]:
    """Every leaf that differs, sorted by path; those named in `excepted` are left out."""
    result = []
    for path in sorted((baseline.keys() | candidate.keys()) - set(excepted)):
        left, right = baseline.get(path, ABSENT), candidate.get(path, ABSENT)
        if not same(left, right):
            result.append(Difference(path, left, right))
    return result


def same(left: Any, right: Any) -> bool:
    """Equal in type and value, also inside lists and dicts."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def _show(value: Any) -> str:
    if value is ABSENT or value == ABSENT:
        return ABSENT
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)
