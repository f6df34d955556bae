"""The sentence that stands first on a comparison: what the evidence says, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

from counterproof_dashboard import findings
from counterproof_dashboard.data import COMPLETE, LOST, OTHER_SCHEMA, RUNNING, Study
from counterproof_dashboard.findings import Effect
from counterproof_dashboard.text import NOT_RECORDED, change, count, interval, quantity, ratio, significant
from counterproof_dashboard.words import DECISION_WORDS, check_name

GOOD, BAD, NEUTRAL = "good", "bad", "neutral"


@dataclass(frozen=True)
class Headline:
    """`tone`: good, bad or neutral. `detail` is one sentence of numbers, possibly empty. Text is not escaped."""

    tone: str
    sentence: str
    detail: str = ""


def headline(study: Study) -> Headline:
    """The study's verdict in one sentence; what keeps it from being one comes first."""
    if study.status == OTHER_SCHEMA:
        return Headline(NEUTRAL, "Recorded by another version of the format: no verdict is shown.")
    if study.status == RUNNING:
        return Headline(NEUTRAL, "Still running: there is no verdict before the last block.")
    if not study.comparison:
        return Headline(
            NEUTRAL, "Not compared yet: it stopped before its end.", f"Continue with {resume(study)}."
        )
    if findings.valid(study) is False:
        failed = [check_name(check.name) for check in findings.checks(study) if check.passed is False]
        reason = f"Failed: {', '.join(failed)}." if failed else ""
        return Headline(BAD, "The evidence is invalid, so it speaks for neither side.", reason)
    if findings.valid(study) is None:
        return Headline(NEUTRAL, "Whether the evidence is valid is not recorded: no verdict is shown.")
    effect = findings.primary_effect(study)
    if effect is None:
        if study.plan.get("calibration") is True:
            return Headline(NEUTRAL, "A calibration study: it measures noise and can never claim an effect.")
        return Headline(NEUTRAL, "The effect on the primary metric is not recorded.")
    return _of_effect(effect)


def _of_effect(effect: Effect) -> Headline:
    numbers = numbers_of(effect)
    moved = f"{effect.name} is {ratio(effect.ratio)} the baseline's ({change(effect.ratio)})"
    if effect.verdict == "gain":
        return Headline(GOOD, f"Gain: {moved}.", numbers)
    if effect.verdict == "loss":
        return Headline(BAD, f"Loss: {moved}.", numbers)
    if effect.verdict == "no claim":
        reason = effect.reason or "it cannot be told from noise"
        return Headline(NEUTRAL, f"No claim on {effect.name}: {reason}.", numbers)
    if effect.verdict == "not measured":
        return Headline(NEUTRAL, f"Not measured: {effect.name}.", f"Reason: {effect.reason or NOT_RECORDED}.")
    return Headline(NEUTRAL, f"The verdict on {effect.name} is not recorded.", numbers)


def numbers_of(effect: Effect) -> str:
    """Values, interval, blocks and noise floor of an effect, as one line."""
    parts = []
    if effect.baseline is not None and effect.value is not None:
        before, after = quantity(effect.baseline, effect.unit), quantity(effect.value, effect.unit)
        parts.append(f"{before} became {after}")
    if effect.ci_low is not None and effect.ci_high is not None:
        parts.append(f"95 % interval {interval(effect.ci_low, effect.ci_high)}")
    if effect.blocks is not None:
        parts.append(f"over {count(effect.blocks, 'block')}")
    floor = f"±{significant(effect.floor * 100, 2)} %" if effect.floor is not None else "not recorded"
    parts.append(f"noise floor {floor}")
    return "; ".join(parts) + "."


def decided(study: Study) -> str:
    """The decision in words, with the reason that the rule gave."""
    found = findings.decision(study)
    if found is None:
        return "No decision is recorded." if study.status in {COMPLETE, LOST} else "No decision yet."
    because = findings.text(study.decision.get("because"))
    return f"{found}: {DECISION_WORDS.get(found, 'see the report')}.{f' Why: {because}.' if because else ''}"


def resume(study: Study) -> str:
    """The command that continues a study."""
    return f"counterproof resume {study.name}"
