"""The three differences of the single-variable rule, leaf by leaf: what was asked for, what ran, and where.

configuration  of the plan: exactly one key may differ, the declared factor (for the control `slowed`: its known delay)
effective      what the engine says it ran: the factor, and what the plan declared to follow from it ("excepted")
environment    of both runs of a block: nothing may differ but what the plan declared

Type-strict throughout: 16, 16.0, "16", true, null, "null" and "not there" are seven different values.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import yaml

from counterproof.errors import CounterproofError
from counterproof.record import canonical
from counterproof_dashboard.data import Run, Study
from counterproof_dashboard.differences import compare_leaves
from counterproof_dashboard.findings import get, text
from counterproof_dashboard.text import count

CONFIGURATION, EFFECTIVE, ENVIRONMENT = "configuration", "effective", "environment"
FACTOR, EXCEPTED, UNDECLARED, EQUAL = "the factor", "excepted: declared to follow", "UNDECLARED", "same"
DELAY = "engine.inject.step_delay_us"


@dataclass(frozen=True)
class Leaf:
    """One path with both values spelled out, and whether it may differ."""

    path: str
    baseline: str
    other: str
    standing: str

    @property
    def differs(self) -> bool:
        return self.standing != EQUAL


@dataclass(frozen=True)
class Diff:
    """One of the three. `holds` None: it could not be judged; `verdict` says it in words, not escaped."""

    kind: str
    leaves: tuple[Leaf, ...]
    excepted: tuple[str, ...]
    holds: bool | None
    verdict: str

    @property
    def differing(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.differs)


def three(study: Study, arm: str, baseline: Run | None, other: Run | None) -> tuple[Diff, Diff, Diff]:
    """All three for `arm` against the baseline; the runs give what ran and where, None: there is no such run."""
    return (
        configuration(study, arm),
        effective(study, arm, baseline, other),
        environment(study, arm, baseline, other),
    )


def varied(study: Study, arm: str) -> str:
    """The one key that `arm` may differ in; empty for the baseline once more, or where it is not recorded."""
    if arm == "candidate":
        return text(get(study.plan, "factor", "path"))
    return DELAY if arm == "slowed" else ""


def configuration(study: Study, arm: str) -> Diff:
    """The plan's configurations."""
    configs = [get(study.plan, "arms", name, "config") for name in ("baseline", arm)]
    if not all(isinstance(config, dict) for config in configs):
        reason = f"The plan does not record the configurations of baseline and {arm}."
        return Diff(CONFIGURATION, (), (), None, reason)
    key = varied(study, arm)
    leaves = _leaves(configs[0], configs[1], {key}, set())
    return Diff(CONFIGURATION, leaves, (), *_judged(leaves, key, needed=True))


def effective(study: Study, arm: str, baseline: Run | None, other: Run | None) -> Diff:
    """What the engine says that it ran, in one block."""
    moved = _moves(study, "effective") if arm == "candidate" else ()
    found = [effective_of(run) for run in (baseline, other)]
    if any(one is None for one in found):
        return Diff(EFFECTIVE, (), moved, None, "The effective configuration of this block is not recorded.")
    key = varied(study, arm).removeprefix("engine.")
    leaves = _leaves(found[0], found[1], {key}, set(moved))
    # A key that no engine has, as of the workload, is not in what the engine ran.
    needed = bool(key) and varied(study, arm).startswith("engine.")
    return Diff(EFFECTIVE, leaves, moved, *_judged(leaves, key, needed=needed))


def environment(study: Study, arm: str, baseline: Run | None, other: Run | None) -> Diff:
    """The environments in which both runs of one block ran, without what varies by the second."""
    moved: tuple[str, ...] = ()
    if arm == "candidate":
        model = _moves(study, "model")
        moved = (*_moves(study, "environment"), *model, *(f"model.{name}" for name in model))
    found = [environment_of(run) for run in (baseline, other)]
    if any(one is None for one in found):
        return Diff(ENVIRONMENT, (), moved, None, "The environment of this block is not recorded.")
    leaves = _leaves(found[0], found[1], set(), set(moved))
    return Diff(ENVIRONMENT, leaves, moved, *_judged(leaves, "", needed=False))


def _moves(study: Study, kind: str) -> tuple[str, ...]:
    found = get(study.plan, "factor", "moves", kind)
    names = [text(name) for name in found] if isinstance(found, list) else []
    return tuple(name.removeprefix("engine.") for name in names if name)


def _leaves(baseline: Any, other: Any, factor: Set[str], excepted: Set[str]) -> tuple[Leaf, ...]:
    found = []
    for leaf in compare_leaves(baseline, other):
        standing = UNDECLARED
        if not leaf.differs:
            standing = EQUAL
        elif leaf.path in factor:
            standing = FACTOR
        elif leaf.path in excepted:
            standing = EXCEPTED
        found.append(Leaf(leaf.path, leaf.baseline, leaf.candidate, standing))
    order = (UNDECLARED, FACTOR, EXCEPTED, EQUAL)
    return tuple(sorted(found, key=lambda leaf: (order.index(leaf.standing), leaf.path)))


def _judged(leaves: tuple[Leaf, ...], key: str, *, needed: bool) -> tuple[bool, str]:
    """Exactly the one key may differ (`needed`: and must), beside what is excepted."""
    wrong = [leaf.path for leaf in leaves if leaf.standing == UNDECLARED]
    moved = any(leaf.standing == FACTOR for leaf in leaves)
    beside = sum(leaf.standing == EXCEPTED for leaf in leaves)
    more = f", and {count(beside, 'excepted key')}" if beside else ""
    if wrong:
        counted = len(wrong) + moved
        one = "one" if key else "none"
        return (
            False,
            f"{count(counted, 'key differs', 'keys differ')} where {one} may: {', '.join(wrong)}{more}.",
        )
    if needed and not moved:
        return False, f"Nothing differs, not even {key or 'the factor, which is not recorded'}."
    if moved:
        return True, f"Exactly one key differs: {key}{more}."
    return True, f"Nothing differs{more}."


def effective_of(run: Run | None) -> dict[str, Any] | None:
    """The effective configuration that a run recorded, or None."""
    if run is None:
        return None
    try:
        found = yaml.safe_load((run.folder / "config" / "effective.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return found if isinstance(found, dict) else None


def environment_of(run: Run | None) -> dict[str, Any] | None:
    """The identifying fields of a run's environment, or None."""
    if run is None:
        return None
    try:
        found = get(canonical.read_json(run.folder / "environment.json"), "id")
    except (OSError, ValueError, CounterproofError):
        return None
    return found if isinstance(found, dict) else None
