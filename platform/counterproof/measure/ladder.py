"""A ladder of single changes: what each step gave, what the top would lose without it, and whether steps interact.

Every rung is a study of its own, so that each change was held to the single-variable rule. The steps climb: the
baseline of one is the candidate of the one below. `without` studies take one factor away from the top; `alone` studies
add one to the bottom. In log units of the primary metric, positive = better:

total = sum of the steps; interaction = total - sum of the factors alone. If its 95 % interval excludes 0, the steps
depend on each other and no single one may be credited with its delta. Means of different studies are independent, so
their variances add; degrees of freedom by Welch and Satterthwaite.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from counterproof.errors import InputError
from counterproof.measure.compare import primary_key
from counterproof.measure.interval import MIN_BLOCKS, t_interval

_DELAY = "engine.inject.step_delay_us"
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Rung:
    """One study's plan and comparison."""

    plan: Mapping[str, Any]
    comparison: Mapping[str, Any]

    @property
    def study(self) -> str:
        return str(self.plan["study"])

    @property
    def factor(self) -> str:
        """Path and values, e.g. `kv_cache.enabled: false -> true`."""
        found = self.plan["factor"]
        path = str(found["path"]).removeprefix("engine.")
        return f"{path}: {_plain(found['baseline'])} -> {_plain(found['candidate'])}"

    def config(self, arm: str) -> dict[str, Any]:
        """The arm's engine configuration, without what belongs to the positive control."""
        whole: Config = self.plan["arms"][arm]["config"]
        return {k: v for k, v in whole.items() if k.startswith("engine.") and k != _DELAY}

    def gains(self) -> list[float]:
        """Per-block gains in log units. Raises InputError for invalid, unfinished or too little evidence."""
        entry = self.comparison["metrics"].get(primary_key(dict(self.plan)), {})
        d = (entry.get("effects", {}).get("candidate") or {}).get("d", [])
        if self.comparison["valid"] is not True or not self.comparison["final"]:
            raise InputError(f"{self.study} is not valid, finished evidence, so it is no rung of a ladder")
        if len(d) < MIN_BLOCKS or any(v is None for v in d):
            raise InputError(
                f"{self.study} has no value of the primary metric in at least {MIN_BLOCKS} blocks"
            )
        sign = 1.0 if self.plan["primary"]["better"] == "higher" else -1.0
        return [sign * float(v) for v in d]


@dataclass(frozen=True)
class Delta:
    """A gain in log units with its 95 % interval."""

    name: str
    study: str
    mean: float
    low: float
    high: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "study": self.study,
            **{
                k: math.expm1(v)
                for k, v in (("gain", self.mean), ("ci_low", self.low), ("ci_high", self.high))
            },
        }


def climb(steps: Sequence[Rung], without: Sequence[Rung] = (), alone: Sequence[Rung] = ()) -> dict[str, Any]:
    """The ladder as data. Raises InputError with the differences where studies do not fit together."""
    _check(steps, without, alone)
    deltas = [_delta(rung) for rung in steps]
    total = _sum("all steps", [(rung, 1.0) for rung in steps])
    singles = [_delta(rung) for rung in alone]
    interaction = None
    if len(alone) == len(steps):
        interaction = _sum("interaction", [*((r, 1.0) for r in steps), *((r, -1.0) for r in alone)])
    resolved = None if interaction is None else interaction.low <= 0.0 <= interaction.high
    return {
        "primary": dict(steps[0].plan["primary"]),
        "steps": [delta.as_dict() for delta in deltas],
        "total": total.as_dict(),
        "without": [_delta(rung).as_dict() for rung in without],
        "alone": [delta.as_dict() for delta in singles],
        "interaction": None if interaction is None else interaction.as_dict(),
        "creditable": resolved,
        "reason": _reason(resolved, len(alone), len(steps)),
    }


def _reason(resolved: bool | None, alone: int, steps: int) -> str:
    if resolved is None:
        return f"interaction not measured: {alone} of {steps} factors were studied alone on the bottom rung"
    if resolved:
        return "no interaction beyond noise: every step may be credited with its delta"
    return "the steps interact: the whole may be claimed, but no single step may be credited"


def _check(steps: Sequence[Rung], without: Sequence[Rung], alone: Sequence[Rung]) -> None:
    if not steps:
        raise InputError("a ladder needs at least one study")
    rungs = (*steps, *without, *alone)
    if any(rung.plan.get("factor") is None for rung in rungs):
        raise InputError("a calibration has no factor, so it is no rung of a ladder")
    for rung in rungs[1:]:
        for field in ("metric", "statistic", "better"):
            if rung.plan["primary"][field] != steps[0].plan["primary"][field]:
                raise InputError(f"{rung.study} judges another primary metric than {steps[0].study}")
    for below, above in itertools.pairwise(steps):
        _same(above, "baseline", below, "candidate")
    for rung in without:
        _same(rung, "candidate", steps[-1], "candidate")
    for rung in alone:
        _same(rung, "baseline", steps[0], "baseline")
    paths = [rung.plan["factor"]["path"] for rung in steps]
    for rung in (*without, *alone):
        if rung.plan["factor"]["path"] not in paths:
            raise InputError(
                f"{rung.study} varies {rung.plan['factor']['path']}, which no step of the ladder does"
            )


def _same(one: Rung, arm: str, other: Rung, other_arm: str) -> None:
    left, right = one.config(arm), other.config(other_arm)
    different = sorted(k for k in {*left, *right} if left.get(k) != right.get(k))
    if different:
        raise InputError(
            f"the {arm} of {one.study} is not the {other_arm} of {other.study}",
            details=[f"{k}: {_plain(left.get(k))}, there {_plain(right.get(k))}" for k in different],
        )


def _delta(rung: Rung) -> Delta:
    found = t_interval(rung.gains())
    if found is None:
        raise InputError(f"{rung.study} has too few blocks")
    return Delta(rung.factor, rung.study, found.mean, found.low, found.high)


def _sum(name: str, parts: Sequence[tuple[Rung, float]]) -> Delta:
    """A signed sum of means. A study that stands in it twice counts once, with the sum of its signs."""
    signs: dict[str, float] = {}
    for rung, sign in parts:
        signs[rung.study] = signs.get(rung.study, 0.0) + sign
    mean = variance = weight = 0.0
    for rung in {rung.study: rung for rung, _ in parts}.values():
        values, sign = rung.gains(), signs[rung.study]
        n = len(values)
        middle = math.fsum(values) / n
        own = sign**2 * math.fsum((v - middle) ** 2 for v in values) / (n - 1) / n
        mean, variance, weight = mean + sign * middle, variance + own, weight + own**2 / (n - 1)
    half = float(stats.t.ppf(0.975, variance**2 / weight)) * math.sqrt(variance) if weight > 0 else 0.0
    return Delta(name, "", mean, mean - half, mean + half)


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
