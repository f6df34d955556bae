"""What the pages say is what the comparison, the decision and the plan say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from counterproof_dashboard import data, differences, findings, frames, headline, overview
from counterproof_dashboard.data import Study
from counterproof_dashboard.findings import GUARDRAIL, PRIMARY, Effect

GAIN, KILLED = "20260102-030405-kv_cache", "20260103-000000-kv_cache"
EXPLORATORY, INVALID = "20260104-000000-null", "20260105-000000-invalid"
NOW = datetime(2026, 1, 5, tzinfo=UTC)


@pytest.fixture
def gain(gallery: Path) -> Study:
    return data.read_study(data.store_of(gallery), GAIN)


def changed(study: Study, **fields: Any) -> Study:
    """The study with deep copies of its documents, so that a test may change them."""
    copy = {name: json.loads(json.dumps(getattr(study, name))) for name in ("plan", "comparison", "decision")}
    return Study(study.name, study.folder, study.status, runs=study.runs, **{**copy, **fields})


def test_the_primary_effect_is_the_comparisons(gain: Study) -> None:
    effect = findings.primary_effect(gain)
    entry = gain.comparison["metrics"]["tpot_ms"]
    assert effect is not None
    assert effect.role == PRIMARY
    assert effect.ratio == entry["effects"]["candidate"]["ratio"]
    assert (effect.ci_low, effect.ci_high) == tuple(
        entry["effects"]["candidate"][k] for k in ("ci_low", "ci_high")
    )
    assert effect.floor == entry["noise_floor"]
    assert effect.verdict == "gain"
    assert effect.requests == 72
    values = entry["arms"]["baseline"]["per_block"]
    assert effect.baseline == pytest.approx(math.prod(values) ** (1 / 6))


def test_registered_metrics_come_first_and_none_is_lost(gain: Study) -> None:
    found = findings.effects(gain)
    assert len(found) == len(gain.comparison["metrics"])
    roles = [effect.role for effect in found]
    assert roles[0] == PRIMARY
    assert roles == sorted(roles, key=["primary", "guardrail", "reported"].index)
    registered = {(g["metric"], g["statistic"]) for g in gain.plan["guardrails"]} - {("outputs", "identical")}
    assert {(e.metric, e.statistic) for e in found if e.role == GUARDRAIL} == registered


def test_an_effect_that_nothing_detects_has_words_in_the_table(gain: Study) -> None:
    copy = changed(gain)
    entry = copy.comparison["metrics"]["tpot_ms"]
    first = frames.metric_table(copy)["mde"][0]
    assert float(first.split()[0]) == pytest.approx(100 * entry["mde"], rel=0.05)
    entry |= {"mde": None, "mde_words": "no effect is detected with 80 % power"}
    assert frames.metric_table(copy)["mde"][0] == "no effect is detected with 80 % power"
    del entry["mde_words"]
    assert frames.metric_table(copy)["mde"][0] == "not recorded"


def effect(**fields: Any) -> Effect:
    base: dict[str, Any] = {
        "metric": "ttft_ms", "statistic": "p50", "unit": "ms", "better": "lower", "role": GUARDRAIL, "ratio": 1.0,
        "ci_low": 0.9, "ci_high": 1.1, "floor": 0.02, "blocks": 6, "verdict": "no claim", "reason": "",
    }  # fmt: skip
    return Effect(**{**base, **fields})


@pytest.mark.parametrize(
    "role, better, band",
    [
        (GUARDRAIL, "lower", (1.0, 1.03)),
        (GUARDRAIL, "higher", (1 / 1.03, 1.0)),
        (PRIMARY, "lower", (1 / 1.03, 1.0)),
        (PRIMARY, "higher", (1.0, 1.03)),
    ],
)
def test_the_margin_lies_on_the_side_of_harm_and_the_smallest_gain_on_the_other(
    role: str, better: str, band: tuple[float, float]
) -> None:
    assert effect(role=role, better=better, margin=0.03).margin_band == pytest.approx(band)
    assert effect(role=role, better=better).margin_band is None


def test_the_noise_band_is_symmetric_on_the_log_axis() -> None:
    low, high = effect(floor=0.037).noise_band or (0, 0)
    assert math.log(low) == pytest.approx(-math.log(high))
    assert high == 1.037
    assert effect(floor=None).noise_band is None


def test_the_headline_says_gain_with_interval_blocks_and_noise(gain: Study) -> None:
    said = headline.headline(gain)
    ratio = gain.comparison["metrics"]["tpot_ms"]["effects"]["candidate"]["ratio"]
    assert said.tone == headline.GOOD
    assert said.sentence.startswith(f"Gain: Time per output token, p50 is {ratio:.3f}×")
    assert "95 % interval" in said.detail
    assert "over 6 blocks" in said.detail
    assert "noise floor ±" in said.detail


@pytest.mark.parametrize(
    "change, tone, words",
    [
        (lambda c: c.update(valid=False), headline.BAD, "The evidence is invalid"),
        (lambda c: c.pop("valid"), headline.NEUTRAL, "Whether the evidence is valid is not recorded"),
        (lambda c: c.pop("metrics"), headline.NEUTRAL, "The effect on the primary metric is not recorded"),
        (lambda c: c["metrics"]["tpot_ms"].update(verdict="loss"), headline.BAD, "Loss: "),
        (
            lambda c: c["metrics"]["tpot_ms"].update(verdict="no claim", reason="too noisy"),
            headline.NEUTRAL,
            "No claim on Time per output token, p50: too noisy.",
        ),
        (lambda c: c["metrics"]["tpot_ms"].update(verdict="not measured"), headline.NEUTRAL, "Not measured"),
        (
            lambda c: c["metrics"]["tpot_ms"].pop("verdict"),
            headline.NEUTRAL,
            "The verdict on Time per output token, p50 is not recorded",
        ),
        (lambda c: c["metrics"]["tpot_ms"].update(verdict="GAIN!"), headline.NEUTRAL, "The verdict on"),
    ],
)
def test_nothing_but_a_valid_gain_reads_like_one(
    gain: Study, change: Callable[[Any], Any], tone: str, words: str
) -> None:
    study = changed(gain)
    change(study.comparison)
    said = headline.headline(study)
    assert said.tone == tone
    assert said.sentence.startswith(words)
    assert "Gain" not in said.sentence


@pytest.mark.parametrize("status", [data.RUNNING, data.LOST, data.OTHER_SCHEMA])
def test_no_verdict_before_the_end(gain: Study, status: str) -> None:
    said = headline.headline(Study(gain.name, gain.folder, status, plan=gain.plan))
    assert said.tone == headline.NEUTRAL
    assert "Gain" not in said.sentence


def test_invalid_and_exploratory_studies_have_no_verdict(gallery: Path) -> None:
    store = data.store_of(gallery)
    invalid, exploratory = data.read_study(store, INVALID), data.read_study(store, EXPLORATORY)
    assert findings.verdict(invalid) is None
    assert findings.verdict(exploratory) == "no claim"
    row = overview.table([invalid, exploratory], NOW).to_dict("records")
    assert [r["verdict"] for r in row] == ["none: invalid", "no claim"]
    assert [r["evidence"] for r in row] == ["INVALID", "valid"]
    assert [r["kind"] for r in row] == ["registered", "exploratory"]
    assert row[0]["effect"] == overview.NOTHING


def test_the_table_says_what_the_record_says(gain: Study) -> None:
    (row,) = overview.table([gain], NOW).to_dict("records")
    ratio = gain.comparison["metrics"]["tpot_ms"]["effects"]["candidate"]["ratio"]
    assert row["effect"].startswith(f"{ratio:.3f}× (")
    assert (row["verdict"], row["decision"], row["age"]) == ("gain", "HOLD", "2 d")
    assert row["open"] == f"/compare?study={GAIN}"


def test_missing_fields_are_not_recorded_never_zero_and_never_hidden(gain: Study) -> None:
    study = changed(
        gain, comparison={"schema": "counterproof-comparison/1"}, decision={"schema": "x"}, plan={}
    )
    (row,) = overview.table([study], NOW).to_dict("records")
    empty = ("experiment", "evidence", "metric", "effect", "verdict", "decision", "age", "kind")
    assert {row[name] for name in empty} == {"not recorded"}


@pytest.mark.parametrize(
    "poison", [None, [], "x", 5, {"candidate": 7}, {"candidate": {"ratio": "fast", "ci_low": True}}]
)
def test_fields_of_another_type_become_not_recorded(gain: Study, poison: Any) -> None:
    study = changed(gain)
    study.comparison["metrics"]["tpot_ms"]["effects"] = poison
    found = findings.primary_effect(study)
    assert found is not None
    assert (found.ratio, found.ci_low, found.ci_high) == (None, None, None)
    frame = frames.forest_frame([study])
    assert frame.iloc[0]["label"].endswith("not recorded")
    for key in ("stages", "cost", "memory", "validity", "diffs", "hard_limits", "blocks", "runs"):
        study.comparison[key] = poison
    assert frames.waterfall_frame(study).empty
    assert frames.cost_table(study).empty
    assert findings.checks(study) == []
    assert frames.block_frames(study, found)[0].empty
    assert differences.recorded_differences(study, "effective") == []
    assert differences.undeclared(study) == []


def test_the_forest_has_the_registered_rows_and_keeps_what_has_no_ratio(gain: Study) -> None:
    frame = frames.forest_frame([gain])
    assert len(frame) == 6
    assert frame.iloc[0]["verdict"] == "gain"
    kv = frame[frame["label"].str.startswith("Peak KV-cache bytes")].iloc[0]
    assert kv["ratio"] is None or math.isnan(kv["ratio"])
    assert kv["label"].split("\n")[1].startswith("+1")
    assert kv["label"].split("\n")[1].endswith("MiB")
    others = frames.forest_frame([gain], registered=False)
    assert len(others) > 5
    assert set(others["label"]).isdisjoint(frame["label"])


def test_several_studies_stand_row_by_row_under_each_metric(gallery: Path) -> None:
    store = data.store_of(gallery)
    frame = frames.forest_frame([data.read_study(store, name) for name in (GAIN, KILLED)])
    assert len(frame) == 12
    first, second = frame["label"].iloc[0], frame["label"].iloc[1]
    assert first.startswith(f"{GAIN} · Time per output token")
    assert second.startswith(f"{KILLED} · Time per output token")


def test_the_waterfall_adds_up_to_the_change(gain: Study) -> None:
    frame = frames.waterfall_frame(gain)
    stages = gain.comparison["stages"]
    assert list(frame["kind"])[-2:] == ["residual", "total"]
    assert len(frame) == len(stages["waterfall"]) + 2
    bars = frame[frame["kind"] != "total"]
    assert bars["delta"].sum() == pytest.approx(stages["total_ms"])
    assert bars["end"].iloc[-1] == pytest.approx(frame["end"].iloc[-1])
    assert list(bars["start"].iloc[1:]) == pytest.approx(list(bars["end"].iloc[:-1]))
    decode = frame[frame["label"].str.startswith("compute · decode")].iloc[0]
    assert decode["kind"] == "faster"
    assert decode["low"] < decode["end"] < decode["high"]


def test_every_cost_cell_is_a_value_or_says_that_there_is_none(gain: Study) -> None:
    frame = frames.cost_table(gain)
    assert list(frame["Stage"]) == ["whole", "input", "state", "compute", "output"]
    cells = frame.drop(columns="Stage").to_numpy().ravel().tolist()
    assert len(cells) == 35
    assert all(cell == "not measured" or "→" in cell for cell in cells)
    assert frame.loc[2, "Memory"].startswith("0 B → 1")
    assert set(frame["Time p99"]) == {"not measured"}


def test_block_ratios_are_those_of_the_blocks(gain: Study) -> None:
    entry = gain.comparison["metrics"]["tpot_ms"]["arms"]
    expected = [
        c / b for c, b in zip(entry["candidate"]["per_block"], entry["baseline"]["per_block"], strict=True)
    ]
    found = findings.block_ratios(gain, "candidate", "tpot_ms", "p50")
    assert [block for block, _ in found] == [0, 1, 2, 3, 4, 5]
    assert [value for _, value in found] == pytest.approx(expected)
    primary = findings.primary_effect(gain)
    assert primary is not None
    dots, means = frames.block_frames(gain, primary)
    assert len(dots) == 18
    assert list(means["arm"]) == ["candidate", "again", "slowed"]


def test_the_answers_are_the_decisions(gain: Study) -> None:
    found = findings.answers(gain)
    assert found.gain_from == gain.decision["answers"]["gain_from"]["text"]
    assert found.back_to == "engine.kv_cache.enabled = false"
    assert found.command == gain.decision["answers"]["stop_and_rollback"]["command"]
    assert len(found.triggers) == len(gain.plan["guardrails"])
    assert len(found.not_tested) >= 5
    assert findings.answers(changed(gain, decision={})).command == ""


BASE = {"engine": {"dtype": "bf16", "kv_cache": {"enabled": False}}, "workload.requests": 16}


def config_study(candidate: Any, factor: str = "engine.kv_cache.enabled", **plan: Any) -> Study:
    arms = {
        "baseline": {"config": BASE},
        **({"candidate": {"config": candidate}} if candidate is not None else {}),
    }
    return Study("s", Path("s"), data.COMPLETE, plan={"arms": arms, "factor": {"path": factor}, **plan})


def flipped(**fields: Any) -> dict[str, Any]:
    return {**BASE, "engine": {"dtype": "bf16", "kv_cache": {"enabled": True}}, **fields}


@pytest.mark.parametrize(
    "study, holds, differing",
    [
        (config_study(flipped()), True, 1),
        (config_study(BASE), False, 0),
        (config_study(flipped(**{"workload.requests": 17})), False, 2),
        (config_study(flipped(**{"workload.requests": 16.0})), False, 2),
        (config_study(flipped(**{"workload.requests": "16"})), False, 2),
        (config_study({k: v for k, v in flipped().items() if k != "workload.requests"}), False, 2),
        (config_study(flipped(**{"workload.requests": None})), False, 2),
        (config_study(flipped(extra=None)), False, 2),
        (config_study(flipped(), factor="engine.dtype"), False, 1),
        (config_study(flipped(), factor=""), False, 1),
        (config_study(None), False, 0),
        (config_study(None, calibration=True), None, 0),
        (Study("s", Path("s"), data.COMPLETE), None, 0),
    ],
)
def test_the_configuration_is_red_unless_exactly_the_factor_differs(
    study: Study, holds: bool | None, differing: int
) -> None:
    diff = differences.arm_diff(study)
    assert diff.holds is holds
    assert len(diff.differing) == differing


def test_missing_null_and_text_stay_apart_in_the_difference() -> None:
    leaves = differences.compare_leaves({"a": None, "b": "null"}, {"b": None})
    assert [(leaf.path, leaf.baseline, leaf.candidate) for leaf in leaves] == [
        ("a", "null", differences.ABSENT),
        ("b", '"null"', "null"),
    ]


def test_recorded_differences_name_what_moved(gain: Study) -> None:
    moved = {leaf.path for leaf in differences.recorded_differences(gain, "effective")}
    assert {"kv_cache.enabled", "kv_cache.blocks", "kv_cache.bytes_per_token"} <= moved
    assert "kv_bytes_written" in {leaf.path for leaf in differences.recorded_differences(gain, "counters")}
    assert differences.undeclared(gain) == []


def test_the_newest_study_comes_first_and_an_undated_one_last() -> None:
    times = {
        "a": "2026-01-02T00:00:00Z",
        "z": "2026-01-01T00:00:00+02:00",
        "m": "2026-01-01T23:00:00Z",
        "n": "?",
    }
    studies = [
        Study(name, Path(name), data.LOST, plan={"created_utc": time} if time != "?" else {})
        for name, time in times.items()
    ]
    assert [study.name for study in overview.newest_first(studies)] == ["a", "m", "z", "n"]


def test_a_filter_finds_studies_by_every_word(gallery: Path) -> None:
    store = data.store_of(gallery)
    studies = [data.read_study(store, name) for name in data.study_names(store)]
    found = {
        words: [s.name for s in studies if overview.fits(s, words)]
        for words in ("gain", "HOLD kv_cache", "lost", "zzz", "", None)
    }
    assert set(found["gain"]) == {GAIN, KILLED}
    assert len(found["HOLD kv_cache"]) >= 3
    assert found["lost"] == ["20260106-000000-lost"]
    assert found["zzz"] == []
    assert len(found[""]) == len(found[None]) == 5
    assert overview.summary(studies) == "5 studies: 4 complete, 1 lost."
