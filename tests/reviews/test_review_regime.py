"""Another class of hardware compares where the same binds there, and only where that is known on both sides."""

from __future__ import annotations

from typing import Any

import pytest

from counterproof_review.protocol import evidence
from counterproof_review.verdict import rule
from counterproof_review.verdict.rule import Evidence, Rule

NAMES = {"baseline": "aaaaaaaa", "candidate": "bbbbbbbb"}
AUTHOR = {"baseline": "arithmetic", "candidate": "memory_traffic"}


def blocks(*pairs: tuple[str | None, str | None]) -> list[dict[str, dict[str, Any]]]:
    return [{"aaaaaaaa": {"bound_by": one}, "bbbbbbbb": {"bound_by": other}} for one, other in pairs]


SAME = ("arithmetic", "memory_traffic")
OTHER = ("scheduling", "memory_traffic")


@pytest.mark.parametrize(
    ("found", "regime", "same"),
    [
        (blocks(*[SAME] * 6), AUTHOR, True),
        (blocks(*[SAME] * 4, OTHER, OTHER), AUTHOR, True),
        (blocks(*[SAME] * 3, *[OTHER] * 3), AUTHOR, False),
        (blocks(*[(None, None)] * 6), AUTHOR, False),
        (blocks(*[(None, None)] * 6), {}, False),
        (blocks(*[SAME] * 6), {"baseline": "arithmetic"}, False),
        (blocks(*[SAME] * 6), None, False),
        ([], AUTHOR, False),
    ],
)
def test_regimes_are_the_same_only_where_both_are_known(found: Any, regime: Any, same: bool) -> None:
    assert evidence.same_regime(found, NAMES, {"regime": regime}) is same


def test_an_attempt_from_before_regimes_were_recorded_tells_none() -> None:
    found = [{"aaaaaaaa": {}, "bbbbbbbb": {}}] * 6
    assert evidence.same_regime(found, NAMES, {"regime": AUTHOR}) is False


def test_what_the_verdict_makes_of_it() -> None:
    gains = [0.50, 0.51, 0.49, 0.50, 0.52, 0.48]
    salt = [0.2 + 0.001 * i for i in range(6)]
    noise = [0.001, -0.001, 0.002, -0.002, 0.001, -0.001]

    def verdict(same_regime: bool) -> rule.Verdict:
        here = [gain - 0.03 for gain in gains]
        other = Evidence(gains, here, noise, salt, salt, same_hardware=False, same_regime=same_regime)
        return rule.judge(other, Rule(sesoi=0.05))

    assert verdict(False).verdict == rule.NOT_COMPARABLE
    known = verdict(True)
    assert known.verdict == rule.REPLICATED
    assert "class of hardware alone" in known.reason
