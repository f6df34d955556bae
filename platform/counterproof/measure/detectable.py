"""What a study could have detected, beside every compared metric: a number, or in words why there is none."""

from __future__ import annotations

import math
from typing import Any

from counterproof.measure.mde import FEW, TRIALS, CompleteRule, Detectable


def rule_of(plan: dict[str, Any], alpha: float) -> CompleteRule:
    """The rule that the plan registered; `alpha`: level of one metric's interval."""
    return CompleteRule(
        blocks=int(plan["blocks"]),
        reserve=int(plan.get("reserve_blocks", 0)),
        alpha=alpha,
        band=float(plan.get("aa_band", 0.05)),
        seed=int(plan.get("seed", 0)),
    )


def add_detectable(entries: dict[str, Any], primary_key: str, rule: CompleteRule) -> None:
    """Give every entry `mde` (fraction of an improvement), `mde_log`, `a_a_passes` (share of simulated studies),
    `mde_given_a_a` (fraction, of those that pass) and `mde_words`. The primary's A/A decides on validity."""
    primary = entries.get(primary_key)
    known = [] if primary is None else primary["effects"]["again"]["d"]
    for key, entry in entries.items():
        effects = entry["effects"]
        if "candidate" not in effects:
            found = Detectable(None, reason="the study has no candidate")
        else:
            again = effects["again"]["d"]
            found = rule.detectable(effects["candidate"]["d"], again, again if key == primary_key else known)
        entry["mde"] = _relative(found.log, entry["better"])
        entry["mde_log"] = found.log
        entry["a_a_passes"] = found.passes
        entry["mde_given_a_a"] = _relative(found.given_log, entry["better"])
        entry["mde_words"] = mde_words(found, rule, entry["better"])


def mde_words(found: Detectable, rule: CompleteRule, better: str) -> str:
    """What the number means, or why there is none and what is detected by the studies that A/A lets pass."""
    if found.passes is None:
        return f"not simulated: {found.reason}"
    blocks = f"{rule.blocks} blocks" if rule.reserve == 0 else f"{rule.blocks} to {rule.most} blocks"
    share = f"A/A lets {_percent(found.passes)} of {TRIALS:,} simulated studies with this noise pass"
    if found.log is not None:
        return f"by the whole rule, {100 * rule.power:.0f} % power, {blocks}; {share}"
    given = _relative(found.given_log, better)
    among = f"too few (below {FEW}) to say what those detect"
    if given is not None:
        among = f"given that it passes, {100 * given:.2f} % is detected with {100 * rule.power:.0f} % power"
    return f"no effect is detected with {100 * rule.power:.0f} % power: {share} ({blocks}); {among}"


def _relative(log_effect: float | None, better: str) -> float | None:
    """An improvement of `log_effect` as a fraction: 0.1 = 10 % lower (or higher, where higher is better)."""
    if log_effect is None:
        return None
    return math.expm1(log_effect) if better == "higher" else -math.expm1(-log_effect)


def _percent(share: float) -> str:
    """A share that is neither none nor all is not rounded to it."""
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{100 * min(share, 0.999 if share < 1 else 1.0):.3g} %"
