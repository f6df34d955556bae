"""The verdict in plain words: one sentence for what was found, one for what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from counterproof.decide.words import metric_words, percent

_ADVICE = {
    "PROMOTE": "Promote the change to exactly the scope below.",
    "HOLD": "Hold: the baseline stays.",
    "ROLLBACK": "Roll back: the baseline must serve.",
    "CONTINUE": "Continue: the study is not over.",
}
_STAMPS = {"PROMOTE": "good", "HOLD": "open", "ROLLBACK": "bad", "CONTINUE": "open"}


@dataclass(frozen=True)
class Headline:
    """`finding` claims no more than the evidence; `advice` is the decision; `because` its reason. `tone` is the
    finding's (good, bad, open), `stamp` the decision's."""

    finding: str
    advice: str
    because: str
    tone: str
    stamp: str


def headline(plan: Mapping[str, Any], comparison: Mapping[str, Any], decision: Mapping[str, Any]) -> Headline:
    """Words for one study."""
    finding, tone = _finding(plan, comparison, decision["primary"])
    return Headline(
        finding,
        _ADVICE[decision["decision"]],
        _sentence(decision["because"]),
        tone,
        _STAMPS[decision["decision"]],
    )


def _finding(
    plan: Mapping[str, Any], comparison: Mapping[str, Any], primary: Mapping[str, Any]
) -> tuple[str, str]:
    name = metric_words(primary["metric"], primary["statistic"])
    if not comparison["final"]:
        done, planned = len(comparison["blocks"]), comparison["blocks_planned"]
        return f"Not finished: {done} of {planned} blocks are complete, so nothing is claimed.", "open"
    if comparison["valid"] is not True:
        return "The evidence is invalid, so it speaks neither for the change nor against it.", "bad"
    if plan.get("calibration"):
        floor = percent(comparison["metrics"].get(primary["metric"], {}).get("noise_floor"), 2)
        return f"Calibration: on this machine two equal arms can differ by {floor} in {name}.", "open"
    beyond = f"beyond the noise floor of {percent(primary['noise_floor'], 2)}"
    if primary["verdict"] == "gain":
        return f"A gain: {_effect(name, primary)}, {beyond}.", "good"
    if primary["verdict"] == "loss":
        return f"A loss: {_effect(name, primary)}, {beyond}.", "bad"
    if primary["ci_low"] is None:
        return f"No gain is shown: {name} was not measured ({primary['reason']}).", "open"
    return f"No gain is shown: {_effect(name, primary)}; {primary['reason']}.", "open"


def _effect(name: str, primary: Mapping[str, Any]) -> str:
    """E.g. "time per output token (p50) is 49.1 % lower (95 %: 47.9 to 50.2 %)"."""
    ratio, ends = primary["ratio"], (primary["ci_low"], primary["ci_high"])
    if ratio >= 3:
        return f"{name} is {ratio:.2f} times the baseline's (95 %: {ends[0]:.2f} to {ends[1]:.2f})"
    side, sign = ("higher", 1) if ratio >= 1 else ("lower", -1)
    low, high = sorted(100 * sign * (end - 1) for end in ends)
    return f"{name} is {100 * sign * (ratio - 1):.1f} % {side} (95 %: {low:.1f} to {high:.1f} %)"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sentence(text: str) -> str:
    whole = _capital(text.strip())
    return whole if whole.endswith(".") else f"{whole}."
