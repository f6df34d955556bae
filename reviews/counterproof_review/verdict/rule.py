"""The verdict of a replication: one pure function. Exactly one of its values lets a scope grow.

The unit is the block. Gains are per-block log ratios oriented so that positive is better, theta their mean. First match:
1 the seal cannot be opened -> UNADJUDICABLE; the protocol was broken or a gate fails -> INVALID, evidence for no side.
2 another regime on another class of hardware -> NOT_COMPARABLE.
3 wrong outputs, a confirmed counterexample inside the scope, or an upper bound below the smallest effect of interest ->
  NOT_REPLICATED.
4 fewer than six blocks on either side, a block that stalled before the extension was run, or a lower bound that does not
  exceed the smallest effect -> INCONCLUSIVE.
5 consistency: the 90 % Welch interval of theta_replay - theta_author against a preregistered band that no noise widens;
  inside -> REPLICATED, wholly below -> REPLICATED_SMALLER, wholly above -> INCONCLUSIVE (the claim is not what was
  found), across an edge -> CONSISTENT_IMPRECISE. Across hardware classes a prediction interval with a registered
  between-machine deviation takes its place (Patil, Peng, Leek, "What should researchers expect when they replicate
  studies?", Perspect. Psychol. Sci. 11, 2016), and what is replicated holds for the replay's class alone.

Bounds are one-sided at 95 %. TOST: Schuirmann, J. Pharmacokin. Biopharm. 15, 1987.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from scipy import stats

from counterproof.measure.noise import a_a_gate
from counterproof_review.packet.agreement import Estimate, estimate
from counterproof_review.packet.layout import MIN_BLOCKS

REPLICATED = "REPLICATED"
REPLICATED_SMALLER = "REPLICATED_SMALLER"
CONSISTENT_IMPRECISE = "CONSISTENT_IMPRECISE"
NOT_REPLICATED = "NOT_REPLICATED"
INCONCLUSIVE = "INCONCLUSIVE"
INVALID = "INVALID"
NOT_COMPARABLE = "NOT_COMPARABLE"
UNADJUDICABLE = "UNADJUDICABLE"
NO_REVIEW = "NO_REVIEW"
VERDICTS = (
    REPLICATED,
    REPLICATED_SMALLER,
    CONSISTENT_IMPRECISE,
    NOT_REPLICATED,
    INCONCLUSIVE,
    INVALID,
    NOT_COMPARABLE,
    UNADJUDICABLE,
    NO_REVIEW,
)
ALPHA = 0.05
LENGTH_TOLERANCE = 0.02


@dataclass(frozen=True)
class Rule:
    """What was preregistered. All but `between_sd` are fractions; `between_sd` is in log units."""

    sesoi: float
    band: float = 0.05
    aa_band: float = 0.05
    between_sd: float = math.log(1.10)


@dataclass(frozen=True)
class Evidence:
    """Everything the verdict looks at.

    author, replay   gains per block, of the sealed results and of the replay
    again            the replay's A/A log ratios
    salt             the replay's log ratios of the salted arm (positive: slower)
    salt_expected    what the disclosed delay should give in each of these blocks, None: not disclosed
    lengths          output tokens of each arm over the baseline's
    outputs_equal    None: nothing was compared, or the change is not declared lossless
    faults           breaches of the protocol and of completeness, in words; any makes the review INVALID
    extended         the preregistered extension was run and the cause of its stall recorded
    """

    author: Sequence[float]
    replay: Sequence[float]
    again: Sequence[float]
    salt: Sequence[float]
    salt_expected: Sequence[float] | None
    lengths: Sequence[float] = ()
    outputs_equal: bool | None = None
    arms_differ: bool = True
    opened: bool = True
    faults: Sequence[str] = ()
    counterexamples: int = 0
    same_hardware: bool = True
    same_regime: bool = True
    extended: bool = False


@dataclass(frozen=True)
class Verdict:
    """The verdict, why, and the numbers behind it in log units (None: they do not exist).

    lower, upper, author_bounds: one-sided 95 % bounds of the replay's and of the author's mean.
    """

    verdict: str
    reason: str
    theta_author: float | None = None
    theta_replay: float | None = None
    lower: float | None = None
    upper: float | None = None
    difference: tuple[float, float, float] | None = None
    stall_bound: float | None = None
    trace: tuple[tuple[str, bool], ...] = field(default=())
    author_bounds: tuple[float, float] | None = None

    @property
    def grows(self) -> bool:
        """Whether the scope may grow: for one verdict alone."""
        return self.verdict == REPLICATED


def no_review() -> Verdict:
    """What holds as long as nobody has reviewed."""
    return Verdict(NO_REVIEW, "nobody who took no part has replayed it")


def judge(evidence: Evidence, rule: Rule) -> Verdict:
    """The verdict of a review, by the rule on top of this page."""
    theirs, ours = _estimate(evidence.author), _estimate(evidence.replay)
    bounds = _bounds(ours)
    checks = (
        _sealed(evidence),
        _valid(evidence, rule),
        _comparable(evidence),
        _refuted(evidence, rule, bounds),
        _undecided(evidence, rule, theirs, ours, bounds),
    )
    found = next((check for check in checks if check is not None), None)
    difference = _difference(theirs, ours)
    verdict, reason = found or _consistency(evidence, rule, theirs, ours, difference)
    lower, upper = bounds if bounds else (None, None)
    return Verdict(
        verdict,
        reason,
        theirs.mean if theirs else None,
        ours.mean if ours else None,
        lower,
        upper,
        difference,
        _stall_bound(len(evidence.replay)),
        tuple(
            (name, check is not None)
            for name, check in zip(
                ("sealed", "valid", "comparable", "refuted", "undecided"), checks, strict=True
            )
        ),
        _bounds(theirs),
    )


def _sealed(evidence: Evidence) -> tuple[str, str] | None:
    if evidence.opened:
        return None
    return UNADJUDICABLE, "neither the author nor the steward can open the sealed results"


def _valid(evidence: Evidence, rule: Rule) -> tuple[str, str] | None:
    """The first gate that fails. Validity is judged before anything else is looked at."""
    if evidence.faults:
        return INVALID, "; ".join(evidence.faults)
    if not evidence.arms_differ:
        return INVALID, "the candidate's arm did the very same work as the baseline: the change had no effect"
    if not all(map(math.isfinite, (*evidence.replay, *evidence.again, *evidence.salt, *evidence.lengths))):
        return INVALID, "a block has no value"
    if len({len(evidence.replay), len(evidence.again), len(evidence.salt)}) != 1:
        return INVALID, "not every arm has a value in every block"
    worst = max((abs(ratio - 1) for ratio in evidence.lengths), default=0.0)
    if worst > LENGTH_TOLERANCE:
        return INVALID, f"output lengths differ by {100 * worst:.1f} % between the arms, at most 2 % may"
    if len(evidence.replay) < MIN_BLOCKS:
        return None  # too few to judge the controls; the estimate is refused as undecided
    gate = a_a_gate(list(evidence.again), rule.aa_band)
    if gate.passed is not True:
        return INVALID, f"A/A on the reviewer's machine: {gate.detail}"
    return _salt(evidence, rule)


def _salt(evidence: Evidence, rule: Rule) -> tuple[str, str] | None:
    """The known delay must be seen, and as large as it was."""
    if evidence.salt_expected is None:
        return (
            INVALID,
            "the delay of the salted arm was not disclosed, so nothing shows that an effect could be seen",
        )
    if len(evidence.salt_expected) != len(evidence.salt):
        return INVALID, "the delay of the salted arm is not told for every block"
    seen = estimate(list(evidence.salt)).interval(0.95)
    error = estimate([s - e for s, e in zip(evidence.salt, evidence.salt_expected, strict=True)]).interval(
        0.95
    )
    if seen is None or error is None or seen[0] <= 0.0:
        return (
            INVALID,
            "the known delay of the salted arm cannot be told from nothing on the reviewer's machine",
        )
    edge = math.log1p(rule.aa_band)
    if error[0] > edge or error[1] < -edge:
        return INVALID, "the known delay of the salted arm was measured wrongly on the reviewer's machine"
    return None


def _comparable(evidence: Evidence) -> tuple[str, str] | None:
    if evidence.same_hardware or evidence.same_regime:
        return None
    return (
        NOT_COMPARABLE,
        "on this class of hardware another bottleneck binds, so the ratios speak of other things",
    )


def _refuted(evidence: Evidence, rule: Rule, bounds: tuple[float, float] | None) -> tuple[str, str] | None:
    if evidence.outputs_equal is False:
        return NOT_REPLICATED, "the change is declared lossless, but outputs differ"
    if evidence.counterexamples:
        count = evidence.counterexamples
        what = (
            "1 counterexample inside the scope was"
            if count == 1
            else f"{count} counterexamples inside the scope were"
        )
        return NOT_REPLICATED, f"{what} confirmed"
    if bounds is not None and len(evidence.replay) >= MIN_BLOCKS and bounds[1] < math.log1p(rule.sesoi):
        what = "a loss" if bounds[1] < 0 else "less than the smallest effect of interest"
        return NOT_REPLICATED, f"the replay shows {what}: at most {_percent(bounds[1])}"
    return None


def _undecided(
    evidence: Evidence,
    rule: Rule,
    theirs: Estimate | None,
    ours: Estimate | None,
    bounds: tuple[float, float] | None,
) -> tuple[str, str] | None:
    least = min(len(evidence.author), len(evidence.replay))
    if theirs is None or ours is None or bounds is None or least < MIN_BLOCKS:
        return INCONCLUSIVE, f"{least} blocks on one side; at least {MIN_BLOCKS} of each are needed"
    noise = estimate(list(evidence.again)).sd or 0.0
    stalled = [i for i, gain in enumerate(evidence.replay) if gain < -2 * noise]
    if stalled and not evidence.extended:
        listed = ", ".join(map(str, stalled))
        return (
            INCONCLUSIVE,
            f"the candidate stalled in block {listed}; run the extension and record the cause",
        )
    if bounds[0] <= math.log1p(rule.sesoi):
        return (
            INCONCLUSIVE,
            f"a gain of at least {_percent(bounds[0])} is shown; the smallest of interest is {_percent(math.log1p(rule.sesoi))}",
        )
    return None


def _consistency(
    evidence: Evidence,
    rule: Rule,
    theirs: Estimate | None,
    ours: Estimate | None,
    difference: tuple[float, float, float] | None,
) -> tuple[str, str]:
    if difference is None or theirs is None or ours is None:
        return INCONCLUSIVE, "there is nothing to compare"
    if not evidence.same_hardware:
        return _across(rule, theirs, ours, difference[0])
    middle, low, high = difference
    edge = math.log1p(rule.band)
    shown = f"the gains differ by {_percent(middle)} (90 % interval {_percent(low)} to {_percent(high)})"
    if -edge < low and high < edge:
        return REPLICATED, f"{shown}, inside the band of {100 * rule.band:g} %"
    if high < -edge:
        return REPLICATED_SMALLER, f"{shown}: the claim is too large; restate it at the replay's lower bound"
    if low > edge:
        return (
            INCONCLUSIVE,
            f"{shown}: the replay finds more than was claimed, so the claim is not what was found",
        )
    return CONSISTENT_IMPRECISE, f"{shown}, across the band's edge of {100 * rule.band:g} %: add blocks"


def _across(rule: Rule, theirs: Estimate, ours: Estimate, middle: float) -> tuple[str, str]:
    """Another class of hardware: a prediction interval, and only ratios."""
    a, b = _variance(theirs), _variance(ours)
    freedom = _freedom(a, b, theirs.n, ours.n)
    half = float(stats.t.ppf(1 - ALPHA / 2, freedom)) * math.sqrt(a + b + 2 * rule.between_sd**2)
    shown = f"the gains differ by {_percent(middle)}, {_percent(half)} may be expected between machines"
    if abs(middle) <= half:
        return REPLICATED, f"{shown}; this holds for the reviewer's class of hardware alone"
    if middle < 0:
        return REPLICATED_SMALLER, shown
    return INCONCLUSIVE, f"{shown}: the replay finds more than was claimed"


def _estimate(values: Sequence[float]) -> Estimate | None:
    return estimate(list(values)) if values and all(map(math.isfinite, values)) else None


def _bounds(found: Estimate | None) -> tuple[float, float] | None:
    """One-sided 95 % bounds of the mean, lower and upper."""
    return None if found is None else found.interval(1 - 2 * ALPHA)


def _difference(theirs: Estimate | None, ours: Estimate | None) -> tuple[float, float, float] | None:
    """theta_replay - theta_author with its 90 % Welch interval."""
    if theirs is None or ours is None or min(theirs.n, ours.n) < 2:
        return None
    a, b = _variance(theirs), _variance(ours)
    middle = (ours.mean or 0.0) - (theirs.mean or 0.0)
    if a + b == 0.0:
        return middle, middle, middle
    half = float(stats.t.ppf(1 - ALPHA, _freedom(a, b, theirs.n, ours.n))) * math.sqrt(a + b)
    return middle, middle - half, middle + half


def _variance(found: Estimate) -> float:
    return (found.sd or 0.0) ** 2 / found.n


def _freedom(a: float, b: float, n: int, m: int) -> float:
    """Welch and Satterthwaite's degrees of freedom."""
    if a + b == 0.0:
        return float(n + m - 2)
    return (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1))


def _stall_bound(blocks: int) -> float | None:
    """95 % upper bound on the probability that a block stalls when none of n did: 1 - 0.05^(1/n)."""
    return None if blocks == 0 else 1.0 - math.pow(0.05, 1.0 / blocks)


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f} %"
