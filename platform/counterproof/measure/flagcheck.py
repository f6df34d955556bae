"""Did the flag do what it says, and only that? The effective configurations, environments and work counters.

The configuration that was asked for proves nothing: an engine may echo a flag and ignore it. So the effective
configurations must differ in the factor and in nothing undeclared, and something besides the echoed flag must
differ too: a derived field, an environment field or a work counter that is the same in every repetition of the
baseline. Identical arms are never evidence of "no effect".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from counterproof.measure.load import RunData, StudyData
from counterproof.record.difference import differences

# Counters that say how often something was timed or dropped, not what work was done.
NOT_WORK = ("events_dropped", "gauges_dropped", "outputs_dropped", "trace_dropped")
DELAY = "inject.step_delay_us"


@dataclass
class Differences:
    """The three diffs of a study, as the comparison lists them, and what they refuse."""

    config: list[dict[str, Any]] = field(default_factory=list)
    effective: list[dict[str, Any]] = field(default_factory=list)
    environment: list[dict[str, Any]] = field(default_factory=list)
    excepted: list[str] = field(default_factory=list)
    undeclared: list[str] = field(default_factory=list)
    counters: list[dict[str, Any]] = field(default_factory=list)
    flag_acted: bool | None = None
    detail: str = ""

    def facts(self) -> dict[str, Any]:
        """The `diffs` part of the comparison."""
        return {
            "config": self.config,
            "effective": self.effective,
            "environment": self.environment,
            "counters": self.counters,
            "excepted": self.excepted,
            "undeclared": self.undeclared,
        }


def find_differences(study: StudyData) -> Differences:
    """Compare every arm's effective configuration and environment with the baseline's, run by run."""
    found = Differences(config=list(study.plan.get("diff", [])))
    factor = study.plan.get("factor") or {}
    moves = factor.get("moves") or {}
    path = str(factor.get("path", "")).removeprefix("engine.")
    declared = {str(p).removeprefix("engine.") for p in moves.get("effective", [])} | {path}
    moved_environment = [*moves.get("environment", []), *moves.get("model", [])]
    found.excepted = sorted({*declared - {path}, *moved_environment})
    for block in study.complete_blocks:
        base = study.runs[(block, "baseline")]
        for arm in study.arms[1:]:
            run = study.runs[(block, arm)]
            allowed = {"candidate": declared, "slowed": {DELAY}}.get(arm, set())
            _collect(found, base, run, allowed, moved_environment)
    if "candidate" in study.arms and study.complete_blocks:
        _judge_flag(study, found, path)
    return found


def _collect(
    found: Differences, base: RunData, run: RunData, allowed: set[str], moved_environment: list[str]
) -> None:
    effective = flat_diff(base.effective, run.effective)
    ids = differences(base.environment.get("id", {}), run.environment.get("id", {}))
    if run.arm == "candidate" and not found.effective:
        found.effective = effective
        found.environment = [difference.as_dict() for difference in ids]
    found.undeclared += [
        f"{run.name}: effective {d['path']} is {d['candidate']!r}, {d['baseline']!r} in the baseline"
        for d in effective
        if d["path"] not in allowed
    ]
    excepted = set(moved_environment) if run.arm == "candidate" else set()
    names = {f"model.{m}" for m in excepted} | excepted
    found.undeclared += [f"{run.name}: environment {d}" for d in ids if d.path not in names]


def flat_diff(baseline: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
    """Fields that differ, type-strict, sorted by path."""
    return [d.as_dict() for d in differences(baseline, other)]


def _judge_flag(study: StudyData, found: Differences, path: str) -> None:
    echoed = [d for d in found.effective if d["path"] == path]
    if not echoed:
        found.flag_acted = False
        found.detail = f"the flag did nothing: the engine ran both arms with the same {path}"
        return
    found.counters = _moved_counters(study)
    witnesses = [d["path"] for d in found.effective if d["path"] != path]
    witnesses += [d["path"] for d in found.environment]
    witnesses += [c["counter"] for c in found.counters]
    found.flag_acted = bool(witnesses)
    if witnesses:
        found.detail = f"besides {path} these moved: {', '.join(witnesses[:6])}"
    else:
        found.detail = (
            f"the flag did nothing: the engine repeats {path}, but no derived field, environment field or "
            "work counter differs between the arms"
        )


def _moved_counters(study: StudyData) -> list[dict[str, Any]]:
    """Counters equal in every baseline/again pair, and different between candidate and baseline in all blocks."""
    moved = []
    base, again, candidate = (study.of(arm) for arm in ("baseline", "again", "candidate"))
    for name in sorted(base[0].counters):
        if name in NOT_WORK:
            continue
        triples = [
            (b.counters.get(name), a.counters.get(name), c.counters.get(name))
            for b, a, c in zip(base, again, candidate, strict=True)
        ]
        if all(b == a and b != c for b, a, c in triples):
            first = triples[0]
            moved.append({"counter": name, "baseline": first[0], "candidate": first[2]})
    return moved
