"""The sabotaged arm: the candidate as it is configured, whose engine is told to leave the feature off.

If the gain is still there, it did not come from the feature.
"""

from __future__ import annotations

from typing import Any

from counterproof.plan.factor import FactorDiff
from counterproof.record.difference import Difference
from intaglio import config_sabotage

SABOTAGE = "sabotage"
SABOTAGE_PATH = "engine.inject.sabotage"
SABOTAGE_EFFECTIVE = config_sabotage.PATH
_ENGINE = "engine."
_INJECTED = "engine.inject."


def sabotage_of(diff: FactorDiff | None) -> str | None:
    """What the engine is told: the baseline's value of everything that the candidate sets differently.

    None for a calibration, for a difference that is not the engine's alone or cannot be written as pairs, and for one
    that is itself an injection, under which there is no hood.
    """
    if diff is None or not all(_tellable(difference) for difference in diff.resolved):
        return None
    return config_sabotage.render({d.path.removeprefix(_ENGINE): d.baseline for d in diff.resolved})


def _tellable(difference: Difference) -> bool:
    value: Any = difference.baseline
    plain = value is None or isinstance(value, bool | int | float | str)
    own = difference.path.startswith(_ENGINE) and not difference.path.startswith(_INJECTED)
    return own and plain and ";" not in str(value)
