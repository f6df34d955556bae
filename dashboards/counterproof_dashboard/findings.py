"""What a comparison and a decision say, as typed rows: the one place that knows their field names.

A field that is absent, of another type or not finite becomes None. Nothing is computed anew except bands that
are drawn around 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from counterproof_dashboard.data import Study
from counterproof_dashboard.text import number, spelled
from counterproof_dashboard.words import metric_name

PRIMARY, GUARDRAIL, REPORTED = "primary", "guardrail", "reported"


@dataclass(frozen=True)
class Effect:
    """One arm against the baseline in one metric. Ratios are arm / baseline; `floor` is a fraction (0.03 = 3 %)."""

    metric: str
    statistic: str
    unit: str
    better: str
    role: str
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    floor: float | None
    blocks: int | None
    verdict: str | None
    reason: str
    baseline: float | None = None
    value: float | None = None
    margin: float | None = None
    mde: float | None = None
    mde_words: str = ""
    difference: float | None = None
    requests: int | None = None

    @property
    def name(self) -> str:
        return metric_name(self.metric, self.statistic)

    @property
    def noise_band(self) -> tuple[float, float] | None:
        """Ratios that two equal arms of this study can show: symmetric around 1 on a log scale."""
        if self.floor is None or self.floor < 0:
            return None
        return 1 / (1 + self.floor), 1 + self.floor

    @property
    def margin_band(self) -> tuple[float, float] | None:
        """From 1 to how far a guardrail may get worse, or to where the primary metric must get to.

        Margins count in log units, as the decision rule counts them: 3 % worse is 1.03, or 1 / 1.03 where higher
        is better.
        """
        if self.margin is None or not 0 < self.margin < 10:
            return None
        upwards = (self.better == "higher") == (self.role == PRIMARY)
        return (1.0, 1 + self.margin) if upwards else (1 / (1 + self.margin), 1.0)


def get(data: Any, *path: str) -> Any:
    """The value at `path` of nested objects, or None."""
    for key in path:
        if not isinstance(data, dict):
            return None
        data = data.get(key)
    return data


def text(value: Any) -> str:
    """A text field, or an empty text."""
    return value if isinstance(value, str) else ""


def rows(value: Any) -> list[dict[str, Any]]:
    """The objects of a list field; anything else gives none."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def flag(value: Any) -> bool | None:
    """A boolean field, or None."""
    return value if isinstance(value, bool) else None


def effects(study: Study, arm: str = "candidate") -> list[Effect]:
    """Every compared metric: the primary first, then guardrails in the plan's order, then the others."""
    found = list(_effects(study, arm))
    order = {PRIMARY: 0, GUARDRAIL: 1, REPORTED: 2}
    return sorted(found, key=lambda effect: order[effect.role])


def primary_effect(study: Study, arm: str = "candidate") -> Effect | None:
    """The effect on the primary metric, if it was compared."""
    return next((effect for effect in effects(study, arm) if effect.role == PRIMARY), None)


def _effects(study: Study, arm: str) -> Iterator[Effect]:
    metrics = get(study.comparison, "metrics")
    for key, entry in metrics.items() if isinstance(metrics, dict) else ():
        if not isinstance(entry, dict):
            continue
        metric = text(entry.get("metric")) or str(key).split(".", 1)[0]
        statistic = text(entry.get("statistic"))
        role, margin = _role(study, metric, statistic)
        effect = get(entry, "effects", arm)
        yield Effect(
            metric=metric,
            statistic=statistic,
            unit=text(entry.get("unit")),
            better=text(entry.get("better")),
            role=role,
            ratio=_positive(get(effect, "ratio")),
            ci_low=_positive(get(effect, "ci_low")),
            ci_high=_positive(get(effect, "ci_high")),
            floor=number(entry.get("noise_floor")),
            blocks=_whole(get(effect, "k")),
            verdict=text(entry.get("verdict")) or None,
            reason=text(entry.get("reason")) or text(get(effect, "reason")),
            baseline=arm_value(entry, "baseline"),
            value=arm_value(entry, arm),
            margin=margin,
            mde=number(entry.get("mde")),
            mde_words=text(entry.get("mde_words")),
            difference=number(get(effect, "difference", "mean")),
            requests=_total(get(entry, "arms", arm, "n")),
        )


def arm_value(entry: dict[str, Any], arm: str) -> float | None:
    """The geometric mean of the arm's block values (the plain mean where one of them is not positive)."""
    per_block = get(entry, "arms", arm, "per_block")
    values = [number(value) for value in per_block] if isinstance(per_block, list) else []
    if not values or any(value is None for value in values):
        return None
    known = [value for value in values if value is not None]
    if min(known) <= 0:
        return sum(known) / len(known)
    return math.exp(sum(map(math.log, known)) / len(known))


def block_ratios(study: Study, arm: str, metric: str, statistic: str) -> list[tuple[int, float]]:
    """(block, ratio to the baseline of the same block) for every block that has both."""
    metrics = get(study.comparison, "metrics")
    for key, entry in metrics.items() if isinstance(metrics, dict) else ():
        named = text(get(entry, "metric")) or str(key).split(".", 1)[0]
        if named != metric or text(get(entry, "statistic")) != statistic:
            continue
        logs = get(entry, "effects", arm, "d")
        blocks = get(study.comparison, "blocks")
        if not isinstance(logs, list):
            return []
        names = blocks if isinstance(blocks, list) and len(blocks) == len(logs) else list(range(len(logs)))
        found = [(block, number(value)) for block, value in zip(names, logs, strict=True)]
        return [
            (int(b), math.exp(d)) for b, d in found if d is not None and isinstance(b, int) and abs(d) < 50
        ]
    return []


def _role(study: Study, metric: str, statistic: str) -> tuple[str, float | None]:
    primary = get(study.plan, "primary")
    if get(primary, "metric") == metric and get(primary, "statistic") in (statistic, None):
        return PRIMARY, number(get(primary, "sesoi"))
    for guardrail in rows(study.plan.get("guardrails")):
        if guardrail.get("metric") == metric and guardrail.get("statistic") in (statistic, None):
            # An exact guardrail is a count against a registered price, not a ratio.
            exact = guardrail.get("kind") == "exact"
            return GUARDRAIL, None if exact else number(guardrail.get("margin"))
    return REPORTED, None


def _positive(value: Any) -> float | None:
    found = number(value)
    return found if found is not None and found > 0 else None


def _total(value: Any) -> int | None:
    known = [_whole(item) for item in value] if isinstance(value, list) else []
    return sum(item for item in known if item is not None) if known and None not in known else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Check:
    """A validity check. `passed` None: it could not be judged."""

    name: str
    passed: bool | None
    detail: str


def checks(study: Study) -> list[Check]:
    """The comparison's validity checks."""
    return [
        Check(text(row.get("check")) or "unnamed", flag(row.get("passed")), text(row.get("detail")))
        for row in rows(get(study.comparison, "validity"))
    ]


def broken_limits(study: Study) -> list[Check]:
    """Hard limits of the comparison (wrong outputs, out of memory, crashes) that are broken."""
    found = rows(get(study.comparison, "hard_limits"))
    return [
        Check(text(row.get("limit")) or "unnamed", False, text(row.get("detail")))
        for row in found
        if row.get("broken") is True
    ]


def valid(study: Study) -> bool | None:
    """Whether the evidence may be judged at all."""
    return flag(study.comparison.get("valid"))


def decision(study: Study) -> str | None:
    """PROMOTE, HOLD, ROLLBACK or CONTINUE."""
    return text(study.decision.get("decision")) or None


def verdict(study: Study) -> str | None:
    """The primary metric's verdict; invalid evidence has none."""
    effect = primary_effect(study)
    if effect is None or valid(study) is not True:
        return None
    return effect.verdict


@dataclass(frozen=True)
class Answers:
    """The report's three answers. Empty texts where the decision does not have them."""

    gain_from: str
    cost_went: str
    back_to: str
    command: str
    triggers: tuple[str, ...]
    reversal: str
    expires: str
    not_tested: tuple[str, ...]


def answers(study: Study) -> Answers:
    """Where the gain came from, where the cost went, how to stop and go back."""
    found = study.decision.get("answers")
    stop = get(found, "stop_and_rollback")
    back = [f"{text(row.get('path'))} = {spelled(row.get('to'))}" for row in rows(get(stop, "configuration"))]
    triggers = [
        f"{text(row.get('condition'))}, over {text(row.get('window'))}: {text(row.get('action'))}"
        for row in rows(get(stop, "triggers"))
    ]
    silent = study.decision.get("not_tested")
    return Answers(
        gain_from=text(get(found, "gain_from", "text")),
        cost_went=text(get(found, "cost_went", "text")),
        back_to=", ".join(back),
        command=text(get(stop, "command")),
        triggers=tuple(triggers),
        reversal=text(study.decision.get("reversal")),
        expires=text(study.decision.get("expires_utc")),
        not_tested=tuple(item for item in silent if isinstance(item, str))
        if isinstance(silent, list)
        else (),
    )
