"""The checks of a calibration: what counts as found, as inconclusive and as a false claim, and which studies are named."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from benchmarks import calibrate
from benchmarks.calibration_rows import KINDS, checks, outcome_of, planted_right, row_of, table

from counterproof.errors import InputError
from counterproof.plan.prereg import compose_arms
from counterproof.record.code_identity import CodeIdentity

STEP_US = 400.0


def records(
    delay_us: int, verdict: str = "no claim", rail: str = "UNPROVEN", **decision: Any
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Plan, comparison and decision of a study, as far as a row is made from them."""
    metric = {"metric": "tpot_ms", "statistic": "p50", "verdict": verdict}
    arms = {"baseline": {"per_block": [STEP_US / 1000] * 6}}
    comparison = {
        "metrics": {"tpot_ms": {**metric, "arms": arms}},
        "blocks": list(range(6)),
        "extensions": [],
        "valid": True,
        "validity": [{"check": "a_a", "passed": True, "detail": ""}],
    }
    primary = {"metric": "tpot_ms", "ratio": 1 + delay_us / STEP_US, "ci_low": 0.99, "ci_high": 1.3}
    primary |= {"a_a_passes": 0.98, "mde_given_a_a": 0.039, "mde_words": "by the whole rule"}
    rails = [
        {"metric": "tpot_ms", "statistic": "p50", "kind": "sampled", "status": rail, "e_fired": False},
        {"metric": "outputs", "statistic": "identical", "kind": "exact", "status": "PASS"},
    ]
    told = {
        "decision": "HOLD",
        "fired": "6 hold",
        "because": "",
        "primary": {**primary, "noise_floor": 0.02, "mde": 0.04},
        "guardrails": rails,
    }
    return {"study": "s", "factor": {"candidate": delay_us}}, comparison, {**told, **decision}


def rows_of(each: int = 2) -> list[dict[str, Any]]:
    """What a calibration should give."""
    rows = []
    for name, kind, _ in calibrate.studies(each):
        share = KINDS[kind]
        harmed = {"decision": "ROLLBACK", "fired": "3 harm"} if share else {}
        row = row_of(
            kind, *records(round(STEP_US * share) if share else 1, "loss" if share else "no claim", **harmed)
        )
        rows.append({**row, "study": name})
    return rows


def failed(rows: list[dict[str, Any]], each: int = 2) -> dict[str, list[str]]:
    return {check["check"]: check["studies"] for check in checks(rows, each) if not check["passed"]}


def test_a_calibration_as_it_should_be_passes_and_is_shown() -> None:
    rows = rows_of()
    assert [row["outcome"] for row in rows] == ["inconclusive", "found", "found"] * 2
    assert [row["planted"] for row in rows[:3]] == [1 / 400, 0.2, 0.05]
    assert failed(rows) == {}
    lines = table(rows).splitlines()
    assert len(lines) == 1 + len(rows)
    assert re.search(r"slow20-01 +\+20\.0 % +\+20\.0 % .* found \(ROLLBACK\)", lines[2])


@pytest.mark.parametrize(
    ("kind", "fields", "outcome"),
    [
        ("slow5", {"verdict": "no claim"}, "inconclusive"),
        ("slow5", {"rail": "PASS"}, "no effect"),
        ("slow5", {"verdict": "gain"}, "no effect"),
        ("slow5", {"verdict": "loss"}, "found"),
        ("slow20", {"decision": "ROLLBACK", "fired": "3 harm"}, "found"),
        ("slow20", {"decision": "ROLLBACK", "fired": "2 hard limit"}, "inconclusive"),
        ("aa", {"verdict": "gain"}, "claimed"),
        ("aa", {"rail": "HARM"}, "claimed"),
        ("aa", {"rail": "PASS"}, "inconclusive"),
    ],
)
def test_what_a_study_says(kind: str, fields: dict[str, Any], outcome: str) -> None:
    assert row_of(kind, *records(20, **fields))["outcome"] == outcome


def test_invalid_evidence_says_nothing_whatever_its_numbers() -> None:
    row = {**rows_of()[1], "valid": False, "refuted": ["a_a"]}
    assert outcome_of(row) == "invalid"


def test_every_check_names_the_studies_that_break_it() -> None:
    rows = rows_of()
    by_name = {row["study"]: row for row in rows}
    by_name["aa-01"]["claims"] = ["tpot_ms p50: loss"]
    assert failed(rows) == {}  # once is chance
    by_name["aa-02"]["harmed"] = ["ttft_ms p50"]
    by_name["slow20-02"]["outcome"] = "inconclusive"
    by_name["slow5-01"]["outcome"] = "no effect"
    by_name["slow5-02"].update(outcome="inconclusive", mde=None, mde_given_a_a=None)
    assert sorted(chain(*failed(rows).values())) == ["aa-01", "aa-02", "slow20-02", "slow5-01", "slow5-02"]
    assert len(failed(rows)) == 3
    by_name["slow5-02"].update(mde=0.08)
    assert "slow5-02" not in chain(*failed(rows).values())
    by_name["slow5-02"].update(mde=None, mde_given_a_a=0.112, a_a_passes=0.4)
    assert "slow5-02" not in chain(*failed(rows).values())
    lines = table(rows).splitlines()
    assert " 11.2 %*" in lines[6] and "*" not in lines[5] and "given that A/A passes" in lines[-1]
    assert "5 % slower" in failed(rows[:-1])["2 studies of every kind"]


def test_a_delay_that_is_not_the_share_it_is_called_is_refused() -> None:
    good, bad = rows_of()[1], {**rows_of()[1], "planted": 0.12}
    assert (planted_right(good), planted_right(bad), planted_right({**good, "planted": None})) == (
        True,
        False,
        False,
    )
    assert failed([bad, *rows_of()])["what was planted is what is said"] == ["slow20-01"]


def test_kinds_alternate_and_every_study_has_a_seed_of_its_own() -> None:
    found = list(calibrate.studies(3))
    assert [kind for _, kind, _ in found] == list(KINDS) * 3
    assert len({seed for _, _, seed in found}) == len({name for name, _, _ in found}) == 9


def test_a_planted_delay_is_the_only_difference_and_is_not_sabotaged() -> None:
    arms = compose_arms(calibrate.EXPERIMENT, [], [f"{calibrate.DELAY}=77"])
    assert arms.diff is not None
    assert [str(d) for d in arms.diff.changed] == ["engine.inject.step_delay_us: 0 -> 77"]
    assert arms.sabotaged is None


def test_another_commits_studies_are_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPROOF_STORE", str(tmp_path))
    first, second = (CodeIdentity("git", digit * 40) for digit in "12")
    store = calibrate.place_of(False, first)
    (store.studies / "aa-01").mkdir()
    assert calibrate.place_of(False, first).root == store.root
    with pytest.raises(InputError, match="another commit"):
        calibrate.place_of(False, second)
    assert not (calibrate.place_of(True, second).studies / "aa-01").exists()


def test_parts_together_are_the_whole_and_share_nothing() -> None:
    whole = [name for name, _, _ in calibrate.studies(12)]
    parts = [[name for name, _, _ in calibrate.studies(12, calibrate.part_of(f"{k}/3"))] for k in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(whole) and len(set(whole)) == 36
    assert calibrate.part_of("1/1") == (1, 1)
    for text in ("0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2"):
        with pytest.raises(InputError, match="K/N"):
            calibrate.part_of(text)
