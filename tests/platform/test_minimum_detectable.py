"""The minimum detectable effect: by simulation with functions of the comparison, the complete rule detects it with the
power asked for, reserve blocks included; where no effect reaches the power, words and numbers say what stops it."""

from __future__ import annotations

import math
import re
import time

import numpy as np
import pytest

from counterproof.decide import words
from counterproof.measure.detectable import add_detectable, mde_words, rule_of
from counterproof.measure.interval import t_interval
from counterproof.measure.mde import CompleteRule, Detectable
from counterproof.measure.noise import a_a_gate, floor_log
from counterproof.plan.reserve import next_extent

BAND = 0.05
STUDIES = 1200


def blocks_of(s: float, k: int = 6, seed: int = 4) -> list[float]:
    """k effects whose sd is exactly `s`."""
    drawn = np.random.default_rng(seed).normal(0.0, 1.0, k)
    return [float(x) for x in (drawn - drawn.mean()) / drawn.std(ddof=1) * s]


def detected(rule: CompleteRule, s: float, effect: float) -> tuple[float, float]:
    """Shares of simulated studies (a ratio's sd is `s`) that detect `effect` (log units), and that pass A/A."""
    rng = np.random.default_rng(23)
    plan = {"blocks": rule.blocks, "reserve_blocks": rule.reserve}
    found = passed = 0
    for _ in range(STUDIES):
        base, again, candidate = rng.normal(0.0, s / math.sqrt(2), (3, rule.most))
        d_again, d = again - base, candidate - base + effect
        k = rule.blocks
        gate = a_a_gate(list(d_again[:k]), BAND)
        while gate.imprecise and (more := next_extent(plan, k)) is not None:
            k = more
            gate = a_a_gate(list(d_again[:k]), BAND)
        interval, floor = t_interval(list(d[:k])), floor_log(list(d_again[:k]))
        assert interval is not None and floor is not None
        passed += gate.passed is True
        found += gate.passed is True and not interval.contains(0.0) and abs(interval.mean) > floor
    return found / STUDIES, passed / STUDIES


@pytest.mark.parametrize(("s", "reserve"), [(0.02, 0), (0.02, 6), (0.045, 6), (0.055, 6)])
def test_the_complete_rule_detects_it_with_the_power_asked_for(s: float, reserve: int) -> None:
    rule = CompleteRule(blocks=6, reserve=reserve, seed=3)
    smallest = rule.detectable(blocks_of(s), blocks_of(s, seed=5))
    assert smallest.log is not None and smallest.passes is not None
    share, passes = detected(rule, s, smallest.log)
    assert 0.76 <= share <= 0.84
    assert passes == pytest.approx(smallest.passes, abs=0.04)
    assert detected(rule, s, 0.7 * smallest.log)[0] < 0.7


def test_reserve_blocks_make_an_effect_detectable_that_was_not() -> None:
    noisy, again = blocks_of(0.045), blocks_of(0.045, seed=5)
    without = CompleteRule(blocks=6).detectable(noisy, again)
    with_reserve = CompleteRule(blocks=6, reserve=6).detectable(noisy, again)
    assert without.log is None and without.passes is not None and without.passes < 0.8
    assert with_reserve.log is not None and 0.05 < with_reserve.log < 0.15
    assert with_reserve.passes is not None and with_reserve.passes > 0.9


def test_where_a_a_mostly_fails_the_effect_is_conditional_and_honest_about_it() -> None:
    rule = CompleteRule(blocks=6, reserve=6)
    s = 0.09
    found = rule.detectable(blocks_of(s, 12), blocks_of(s, 12, seed=5))
    assert found.log is None and found.given_log is not None and found.passes is not None
    share, passes = detected(rule, s, found.given_log)
    assert passes == pytest.approx(found.passes, abs=0.04)
    assert share / passes == pytest.approx(0.8, abs=0.06)
    assert detected(rule, s, 0.6)[0] == pytest.approx(passes)  # no effect, however large, gets past the gate
    said = mde_words(found, rule, "lower")
    assert re.search(
        r"no effect is detected with 80 % power: A/A lets [\d.]+ % of 8,000 .* pass \(6 to 12 ", said
    )
    assert f"given that it passes, {-100 * math.expm1(-found.given_log):.2f} % is detected" in said


def test_less_noise_detects_less_and_a_tighter_band_passes_less() -> None:
    rule = CompleteRule(blocks=6, reserve=6)
    found = [rule.detectable(blocks_of(s), blocks_of(s, seed=5)) for s in (0.005, 0.01, 0.02, 0.04)]
    values = [f.log for f in found if f.log is not None]
    assert len(values) == 4 and values == sorted(values) and values[0] < values[-1] / 4
    tight = CompleteRule(blocks=6, reserve=6, band=0.02).detectable(blocks_of(0.02), blocks_of(0.02, seed=5))
    assert tight.passes is not None and found[2].passes is not None and tight.passes < found[2].passes


def test_without_a_reserve_the_value_is_that_of_the_planned_blocks_alone() -> None:
    """The number: of the same seed and noise before reserve blocks were simulated."""
    found = CompleteRule(blocks=6, seed=3).detectable(blocks_of(0.02), blocks_of(0.02, seed=5))
    assert found.log == pytest.approx(0.03672499449705438, rel=1e-9)
    again = CompleteRule(blocks=6, seed=3).detectable(blocks_of(0.02), blocks_of(0.02, seed=5))
    assert again == found


def test_another_metric_needs_the_primarys_a_a_to_pass() -> None:
    rule = CompleteRule(blocks=6, reserve=2)
    quiet, again = blocks_of(0.01), blocks_of(0.01, seed=5)
    alone = rule.detectable(quiet, again, blocks_of(0.01, seed=6))
    spoilt = rule.detectable(quiet, again, blocks_of(0.09, seed=6))
    assert alone.log is not None and alone.passes is not None and alone.passes > 0.95
    assert spoilt.log is None and spoilt.passes is not None and spoilt.passes < 0.3
    assert rule.detectable(quiet, again, [0.0] * 6).log == pytest.approx(alone.log, rel=0.1)
    own = [x * 0.045 for x in (1.0, -1.0, 1.0, -1.0, 0.0, 0.0)]
    twin = rule.detectable(blocks_of(0.045), own, list(own))
    foreign = rule.detectable(blocks_of(0.045), own, [x * 0.045 for x in (1.0, 1.0, -1.0, -1.0, 0.0, 0.0)])
    assert twin.passes is not None and foreign.passes is not None
    assert twin.passes > foreign.passes + 0.05  # what moves together passes together


@pytest.mark.parametrize(
    ("candidate", "again", "primary", "reason"),
    [
        (blocks_of(0.01, 5), blocks_of(0.01, 5), None, "candidate effect has no interval"),
        (blocks_of(0.01), [*blocks_of(0.01, 5), None], None, "A/A effect has no interval"),
        (blocks_of(0.01), blocks_of(0.01), [], "primary metric's A/A has no interval"),
    ],
)
def test_what_is_not_simulated_says_why(
    candidate: list[float | None], again: list[float | None], primary: list[float] | None, reason: str
) -> None:
    rule = CompleteRule(blocks=6)
    found = rule.detectable(candidate, again, primary)
    assert (found.log, found.passes, found.given_log) == (None, None, None)
    assert reason in mde_words(found, rule, "lower")


def test_entries_get_numbers_and_words() -> None:
    def entry(s: float, better: str) -> dict[str, object]:
        effects = {"again": {"d": blocks_of(s, seed=5)}, "candidate": {"d": blocks_of(s)}}
        return {"better": better, "effects": effects}

    entries = {"tpot_ms": entry(0.02, "lower"), "throughput_tok_s": entry(0.02, "higher")}
    plan = {"blocks": 6, "reserve_blocks": 6, "aa_band": BAND, "seed": 7}
    began = time.process_time()
    add_detectable(entries, "tpot_ms", rule_of(plan, 0.025))
    assert time.process_time() - began < 2.0  # of this process alone, whatever else runs here
    lower, higher = entries["tpot_ms"], entries["throughput_tok_s"]
    assert lower["mde"] == pytest.approx(-math.expm1(-float(str(lower["mde_log"]))))
    assert higher["mde"] == pytest.approx(math.expm1(float(str(lower["mde_log"]))))
    assert re.match(
        r"by the whole rule, 80 % power, 6 to 12 blocks; A/A lets [\d.]+ % of", str(lower["mde_words"])
    )
    calibration = {"tpot_ms": {"better": "lower", "effects": {"again": {"d": blocks_of(0.02)}}}}
    add_detectable(calibration, "tpot_ms", rule_of(plan, 0.05))
    assert calibration["tpot_ms"]["mde_words"] == "not simulated: the study has no candidate"


def test_none_is_never_shown_as_a_bare_blank() -> None:
    assert words.detectable({"mde": 0.051, "a_a_passes": 0.99, "mde_given_a_a": 0.05}) == "5.10 %"
    assert (
        words.detectable({"mde": None, "a_a_passes": 0.4, "mde_given_a_a": 0.112})
        == "none (11.20 % if A/A passes)"
    )
    assert words.detectable({"mde": None, "a_a_passes": 0.001, "mde_given_a_a": None}) == "none"
    assert words.detectable({"mde": None}) == "not measured"
    hopeless = mde_words(Detectable(None, 0.00025, None), CompleteRule(6), "lower")
    assert "A/A lets under 0.1 % of 8,000" in hopeless and "too few (below 100)" in hopeless
    assert "99.9 %" in mde_words(Detectable(0.01, 0.99999, 0.01), CompleteRule(6), "lower")
