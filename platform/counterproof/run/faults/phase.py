"""Faults as a phase of a study: after its blocks every fault strikes small copies of it, and each line is kept at once.

What was recorded is not repeated: a study that is cut off in the midst of this phase goes on with the next fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import verify_plan
from counterproof.run.faults import registry, suite
from counterproof.run.faults.bench import Bench
from counterproof.run.faults.fault import Fault, Outcome

Told = Callable[[int, int, Fault, Outcome | None], None]


def due(paths: StudyPaths) -> list[Fault]:
    """The faults that the plan asks for and that failures.jsonl does not hold yet, in the order of the suite."""
    plan = verify_plan(paths)[0]
    if not plan.get("faults"):
        return []
    seen = _recorded(paths)
    return [fault for fault in registry.all_faults() if fault.name not in seen]


def run(store: Store, paths: StudyPaths, tell: Told) -> None:
    """Let the faults that are due strike copies of the study, in a scratch store that is removed afterwards.

    tell   called before (outcome None) and after each fault with its number and how many there are
    """
    left = due(paths)
    if not left:
        return
    plan = verify_plan(paths)[0]
    scratch, remove = suite.bench_store(store)
    try:
        bench = Bench(scratch, plan["experiment"], overrides_of(plan), seed=int(plan["seed"]))
        for number, fault in enumerate(left, start=1):
            tell(number, len(left), fault, None)

            def struck(one: Fault, outcome: Outcome, at: int = number) -> None:
                tell(at, len(left), one, outcome)

            suite.record(paths, suite.run_faults([fault], bench, struck))
    finally:
        remove()


def overrides_of(plan: Mapping[str, Any]) -> list[str]:
    """The user's overrides of a study, without the factor's own, as its copies get them."""
    factor = plan["factor"] or {"path": "", "bundle": []}
    own = {factor["path"], *factor["bundle"]}
    return [t for t in plan["arms"]["baseline"]["overrides"] if t.partition("=")[0] not in own]


def _recorded(paths: StudyPaths) -> set[str]:
    if not paths.failures.is_file():
        return set()
    return {
        str(json.loads(line)["fault"]) for line in paths.failures.read_text(encoding="utf-8").splitlines()
    }
