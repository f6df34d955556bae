"""Six ways to a gain that is none. Each study must end invalid, held or refused, for its own reason, and claim nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof.decide.rule import decide
from counterproof.errors import InputError
from counterproof.measure.compare import compare
from counterproof.measure.load import load_study
from counterproof.plan import checks
from counterproof.plan.prereg import compose_arms

# All of them look twice as fast: an honest study of these numbers is a gain.
LOOKS_FAST = {"decode_ratio": 0.5}
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "the candidate emits 20 % fewer tokens": ({"kept_tokens": 0.8}, "output_length", "largest difference 2"),
    "the flag does nothing": ({"identical_arms": True}, "arms_differ", "the flag did nothing"),
    "the cache is warm": ({"cached_tokens": 32}, "cold_cache", "the cache was warm: "),
    "the metric is missing": ({"nan_arm": "candidate"}, "clock", "is missing"),
    "the client is the bottleneck": ({"client_late_us": 40_000}, "client", "the client was the bottleneck"),
}


def judged(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    study = load_study(folder)
    comparison = compare(study)
    return comparison, decide(study.plan, comparison)


def claims(comparison: dict[str, Any]) -> list[str]:
    return [key for key, entry in comparison["metrics"].items() if entry["verdict"] == "gain"]


def test_the_honest_study_of_the_same_numbers_is_a_gain(build_study: Callable[..., Path]) -> None:
    comparison, decision = judged(build_study(**LOOKS_FAST))
    assert comparison["valid"] is True
    assert "tpot_ms" in claims(comparison)
    assert decision["fired"] == "6 hold"  # nobody has replicated it yet


@pytest.mark.parametrize("case", list(BAD))
def test_a_bad_study_is_invalid_for_the_right_reason(case: str, build_study: Callable[..., Path]) -> None:
    fields, check, reason = BAD[case]
    comparison, decision = judged(build_study(**{**LOOKS_FAST, **fields}))
    refuted = {c["check"]: c["detail"] for c in comparison["validity"] if c["passed"] is False}
    assert reason in refuted.get(check, ""), refuted
    assert comparison["valid"] is False
    assert claims(comparison) == []
    assert (decision["decision"], decision["fired"]) == ("HOLD", "1 evidence invalid")
    assert reason in decision["because"]


def test_a_single_run_is_refused_and_claims_nothing_where_it_is_explored(
    build_study: Callable[..., Path],
) -> None:
    config = compose_arms("kv_cache", ["study.blocks=1"]).baseline.config
    with pytest.raises(InputError, match="an interval needs at least 6"):
        checks.check(config, exploratory=False)
    checks.check(config, exploratory=True)
    comparison, decision = judged(build_study(**LOOKS_FAST, blocks=1, exploratory=True))
    assert claims(comparison) == []
    assert decision["decision"] == "HOLD"
    assert comparison["metrics"]["tpot_ms"]["effects"]["candidate"]["ci_low"] is None
