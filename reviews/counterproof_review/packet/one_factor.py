"""One variable, on the receiving side: which arm may differ from which other, and in what.

The plan's own rule was enforced when the study was planned. A packet can be forged as a whole, so the arm files
are held against it again: `again` is the baseline, `slowed` is the baseline with the stated delay, and the
candidate differs in the declared factor and in what is said to follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterproof_review.packet import layout
from counterproof_review.packet.errors import PacketError
from intaglio.config import Scalar

ENGINE = "engine."
DELAY = "inject.step_delay_us"


def check(arms: Mapping[str, Mapping[str, Scalar]], results: Mapping[str, Any]) -> str:
    """Hold `{opaque name: configuration}` against the author's arm map and factor; return what was found, in words.

    Raises PacketError E_ARMS where an arm differs in more, less or something else than it may.
    """
    named = {arm: arms[opaque] for arm, opaque in results["arms"].items()}
    factor = _factor(results["factor"])
    varied = set(factor["bundle"]) or {factor["path"]}
    expected = {
        path.removeprefix(ENGINE) for path in varied | set(factor["follows"]) if path.startswith(ENGINE)
    }
    if not expected:
        raise PacketError("E_ARMS", "what was varied is no part of the engine", path=layout.RESULTS)
    _same("again", _differing(named, "again"), set())
    _same("slowed", _differing(named, "slowed"), {DELAY})
    if named["slowed"][DELAY] != results["injected_delay_us"]:
        raise PacketError(
            "E_ARMS", "the delayed arm has another delay than the results state", path=layout.RESULTS
        )
    _same("candidate", _differing(named, "candidate"), expected)
    own = factor["path"].removeprefix(ENGINE)
    for arm in ("baseline", "candidate"):
        if own in expected and not _equal(named[arm][own], factor[arm]):
            raise PacketError("E_ARMS", "the factor's value is not the one its arm has", path=layout.RESULTS)
    follows = len(factor["follows"])
    return f"they differ in one factor{f' and {follows} values said to follow from it' if follows else ''}"


def _factor(value: Any) -> dict[str, Any]:
    """The results' factor with every key that is needed; bundle and follows may be left out."""
    if not isinstance(value, dict) or not {"path", "baseline", "candidate"} <= set(value):
        raise PacketError("E_ARMS", "the results do not say what was varied", path=layout.RESULTS)
    factor = {"bundle": [], "follows": [], **value}
    lists = [factor["bundle"], factor["follows"]]
    if not isinstance(factor["path"], str) or not all(_paths(names) for names in lists):
        raise PacketError("E_SCHEMA", "the factor is not named by configuration paths", path=layout.RESULTS)
    return factor


def _paths(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _differing(named: Mapping[str, Mapping[str, Scalar]], arm: str) -> set[str]:
    baseline = named["baseline"]
    return {key for key, value in named[arm].items() if not _equal(value, baseline[key])}


def _equal(first: Any, second: Any) -> bool:
    return type(first) is type(second) and first == second


def _same(arm: str, found: set[str], expected: set[str]) -> None:
    if found == expected:
        return
    details = [f"differs, but may not: {key}" for key in sorted(found - expected)]
    details += [f"should differ: {key}" for key in sorted(expected - found)]
    raise PacketError(
        "E_ARMS",
        f"arm '{arm}' does not differ from the baseline in exactly what it may",
        details=details,
        path=layout.ARMS,
    )
