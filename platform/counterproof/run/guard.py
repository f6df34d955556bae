"""The second and third diff: what the engine really ran, and where, against the study's baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from counterproof.errors import RefusedError
from counterproof.plan.probes import SABOTAGE, SABOTAGE_EFFECTIVE
from counterproof.record import canonical
from counterproof.record.difference import Difference, differences

DELAY = "inject.step_delay_us"


@dataclass(frozen=True)
class Reference:
    """Effective configuration and environment of the sealed baseline that others must match."""

    run: str
    effective: dict[str, Any]
    environment: dict[str, Any]

    @staticmethod
    def read(folder: Path) -> Reference:
        """From a sealed run's folder. Raises EvidenceError."""
        effective = yaml.safe_load((folder / "config" / "effective.yaml").read_text(encoding="utf-8"))
        return Reference(folder.name, effective, canonical.read_json(folder / "environment.json"))


def environment_exceptions(plan: Mapping[str, Any]) -> list[str]:
    """Identity fields that the factor declared to move."""
    moves = (plan.get("factor") or {}).get("moves") or {}
    return sorted({*moves.get("environment", []), *(f"model.{name}" for name in moves.get("model", []))})


def check_common(plan: Mapping[str, Any], common: Mapping[str, Any]) -> None:
    """Raise RefusedError when code, machine, libraries or model are not those that were registered."""
    found = differences(plan["environment"], common)
    if found:
        raise RefusedError(
            "refused: this is not the code, machine or model that the study was registered with",
            details=[str(difference) for difference in found]
            + ["go back to it, or start another study: counterproof run ..."],
        )


def check_run(
    arm: str,
    plan: Mapping[str, Any],
    effective: Mapping[str, Any],
    environment: Mapping[str, Any],
    reference: Reference,
) -> None:
    """Raise RefusedError with the list of differences that nothing declared."""
    excepted = environment_exceptions(plan) if arm == "candidate" else []
    moved = differences(reference.environment["id"], environment["id"], excepted)
    changed = _undeclared(arm, plan, differences(reference.effective, effective))
    if moved or changed:
        raise RefusedError(
            f"refused: {arm} differs from {reference.run} in more than what was declared",
            details=[f"environment {difference}" for difference in moved]
            + [f"effective {difference}" for difference in changed],
        )
    _check_factor(arm, plan, effective, reference)


def _undeclared(arm: str, plan: Mapping[str, Any], found: list[Difference]) -> list[Difference]:
    allowed: set[str] = set()
    if arm == "candidate":
        allowed = set(plan["factor"]["moves"]["effective"])
    elif arm == "slowed":
        allowed = {DELAY}
    elif arm == SABOTAGE:
        # Off under the hood means: the baseline in everything that really runs.
        allowed = {SABOTAGE_EFFECTIVE}
    return [difference for difference in found if difference.path not in allowed]


def _check_factor(
    arm: str, plan: Mapping[str, Any], effective: Mapping[str, Any], reference: Reference
) -> None:
    """A factor that the engine echoes unchanged was not switched at all."""
    if arm != "candidate":
        return
    for change in plan["diff"]:
        path = str(change["path"]).removeprefix("engine.")
        if path in reference.effective and not differences(
            {path: reference.effective[path]}, {path: effective.get(path)}
        ):
            raise RefusedError(
                f"refused: the engine did not apply {change['path']}",
                details=[f"both arms really run with {path} = {effective.get(path)!r}"],
            )
