"""Both pages, run by Streamlit's own test runner on stores of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

GAIN, KILLED = "20260102-030405-kv_cache", "20260103-000000-kv_cache"
EXPLORATORY, INVALID, UNFINISHED = "20260104-000000-null", "20260105-000000-invalid", "20260106-000000-lost"


def words(app: AppTest) -> str:
    """All text elements of the page."""
    kinds = ("title", "subheader", "markdown", "caption", "success", "error", "warning", "info", "code")
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind))


def specs(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in app.get("vega_lite_chart")]


def titles(app: AppTest) -> list[str]:
    return [spec["title"]["text"] for spec in specs(app)]


@pytest.mark.parametrize("page", ["experiments", "compare"])
def test_an_empty_store_tells_how_to_make_the_first_study(
    open_page: Callable[..., AppTest], tmp_path: Path, page: str
) -> None:
    app = open_page(tmp_path / "store", page)
    assert "There is no study in" in app.info[0].value
    assert "counterproof run kv_cache" in [code.value for code in app.code]
    assert not app.dataframe
    assert not app.error


def test_one_study_is_a_row_with_verdict_decision_and_age(
    open_page: Callable[..., AppTest], own: Callable[..., Path]
) -> None:
    app = open_page(own(GAIN))
    frame = app.dataframe[0].value
    assert len(frame) == 1
    row = frame.iloc[0]
    assert (row["study"], row["status"], row["verdict"], row["decision"]) == (
        GAIN,
        "complete",
        "gain",
        "HOLD",
    )
    assert row["age"].endswith(" d")
    assert "1 study: 1 complete." in words(app)
    # What decides comes first, and names and intervals are not cut: a letter takes about 7 pixels.
    order = list(frame.columns)
    assert max(order.index("verdict"), order.index("decision")) < order.index("metric")
    widths = json.loads(app.dataframe[0].proto.columns)
    assert widths["study"]["width"] >= 7 * len("kv_cache-20260102-030405")
    assert widths["effect"]["width"] >= 7 * len(row["effect"])


def test_many_studies_each_say_what_they_are(open_page: Callable[..., AppTest], gallery: Path) -> None:
    app = open_page(gallery)
    frame = app.dataframe[0].value.set_index("study")
    assert list(frame.index) == [UNFINISHED, INVALID, EXPLORATORY, KILLED, GAIN]
    assert frame.loc[INVALID, "verdict"] == "none: invalid"
    assert frame.loc[EXPLORATORY, "kind"] == "exploratory"
    assert frame.loc[UNFINISHED, "verdict"] == "–"
    assert f"counterproof resume {UNFINISHED}" in words(app).replace("\\", "")
    app.text_input[0].set_value("gain").run()
    assert list(app.dataframe[0].value["study"]) == [KILLED, GAIN]
    app.text_input[0].set_value("no such thing").run()
    assert "None of the 5 studies fits the filter" in app.info[0].value


def test_a_study_by_link_opens_with_headline_forest_and_all_charts(
    open_page: Callable[..., AppTest], gallery: Path
) -> None:
    app = open_page(gallery, "compare", study=[GAIN])
    assert app.title[0].value.replace("\\", "") == GAIN
    assert app.success[0].value.replace("\\", "").startswith("**Gain: Time per output token, p50 is 0.5")
    found = titles(app)
    assert found[0] == "What moved"
    assert "Block by block: Time per output token, p50" in found
    assert "End-to-end latency: every request" in found
    assert "Which stage it came from" in found
    assert "Resident memory of the process" in found
    assert "KV-cache bytes in use" in found
    assert "Exactly one key differs: engine.kv_cache.enabled" in words(app).replace("\\", "")
    tables = [table.value for table in app.table]
    assert len(tables) == 2
    judged = json.loads((gallery / "studies" / GAIN / "comparison.json").read_text())["validity"]
    assert len(tables[0]) == len(judged) >= 12
    assert len(tables[1]) == 6
    marks = {True: "✓\xa0passed", False: "✗\xa0failed", None: "?\xa0not\xa0judged"}
    assert list(tables[0]["Result"]) == [marks[row["passed"]] for row in judged]
    assert "✗\xa0failed" not in set(tables[0]["Result"])


def test_every_chart_prints_what_stands_behind_it(open_page: Callable[..., AppTest], gallery: Path) -> None:
    app = open_page(gallery, "compare", study=[KILLED])
    found = specs(app)
    assert len(found) >= 6
    for spec in found:
        subtitle = " ".join(spec["title"]["subtitle"])
        assert "block" in subtitle, spec["title"]
        assert "failed" in subtitle, spec["title"]
    assert (
        "24 sealed timed runs in 6 blocks · 1 lost · 0 failed · all compared" in found[0]["title"]["subtitle"]
    )


def test_the_metric_and_the_arms_can_be_chosen_without_changing_the_others(
    open_page: Callable[..., AppTest], gallery: Path
) -> None:
    app = open_page(gallery, "compare", study=[GAIN])
    app.selectbox(key="latency").set_value("ttft_ms").run()
    assert "Time to first token: every request" in titles(app)
    both = next(s for s in specs(app) if s["title"]["text"].startswith("Time to first token"))
    app.button_group(key="arms").set_value(["baseline"]).run()
    one = next(s for s in specs(app) if s["title"]["text"].startswith("Time to first token"))
    assert len(both["title"]["subtitle"]) == 2
    assert one["title"]["subtitle"] == both["title"]["subtitle"][:1]
    assert "6 runs, 6 blocks, 72 requests, 0 failed" in one["title"]["subtitle"][0]
    assert not app.exception


def test_failed_requests_are_printed_on_the_curve(open_page: Callable[..., AppTest], gallery: Path) -> None:
    app = open_page(gallery, "compare", study=[INVALID])
    assert "The evidence is invalid" in app.error[0].value
    curve = next(s for s in specs(app) if s["title"]["text"].startswith("End-to-end"))
    assert "candidate: 6 runs, 6 blocks, 60 requests, 12 failed" in curve["title"]["subtitle"]
    assert "✗\xa0failed" in set(app.table[0].value["Result"])


def test_several_studies_stand_side_by_side(open_page: Callable[..., AppTest], gallery: Path) -> None:
    app = open_page(gallery, "compare", study=[GAIN, KILLED, EXPLORATORY])
    assert app.title[0].value == "3 studies side by side"
    names = {element.value.replace("\\", "") for element in app.subheader}
    assert {GAIN, KILLED, f"{EXPLORATORY} (exploratory)"} <= names
    curves = [title for title in titles(app) if title.startswith("End-to-end latency")]
    assert [title.split(" · ")[1] for title in curves] == [GAIN, KILLED, EXPLORATORY]
    assert "same configuration" in words(app)
    app.selectbox(key="details").set_value(KILLED).run()
    assert not app.exception


@pytest.mark.parametrize(
    "asked", [["deleted"], [GAIN, "deleted"], ["../studies/" + GAIN], [""], [GAIN + "/"]]
)
def test_an_unknown_study_in_a_link_is_an_error_and_never_another_study(
    open_page: Callable[..., AppTest], gallery: Path, asked: list[str]
) -> None:
    app = open_page(gallery, "compare", study=asked)
    assert "There is no study" in app.error[0].value
    assert "Nothing else is shown instead" in words(app)
    assert not specs(app)
    assert not app.success
    assert not app.dataframe


def test_compare_without_a_study_asks_for_one(open_page: Callable[..., AppTest], gallery: Path) -> None:
    app = open_page(gallery, "compare")
    assert app.title[0].value == "Compare"
    assert "Choose one study" in app.info[0].value
    assert len(app.multiselect[0].options) == 5
    assert not specs(app)


def test_an_unfinished_study_shows_progress_and_no_verdict(
    open_page: Callable[..., AppTest], gallery: Path
) -> None:
    app = open_page(gallery, "compare", study=[UNFINISHED])
    said = words(app).replace("\\", "")
    assert "Not compared yet" in said
    assert f"counterproof resume {UNFINISHED}" in said
    assert app.get("progress")[0].proto.text == "22 of 24 timed runs sealed"
    assert not specs(app)
    assert not app.success or "Exactly one key differs" in app.success[0].value


def test_a_tampered_record_is_refused_with_its_file_and_no_number(
    open_page: Callable[..., AppTest], own: Callable[..., Path]
) -> None:
    root = own(GAIN, KILLED)
    path = root / "studies" / GAIN / "runs" / "02-candidate-1" / "requests.parquet"
    path.write_bytes(path.read_bytes() + b"x")
    row = open_page(root).dataframe[0].value.set_index("study").loc[GAIN]
    assert row["status"] == "refused"
    assert row["verdict"] == row["effect"] == row["decision"] == "–"
    app = open_page(root, "compare", study=[GAIN])
    assert app.title[0].value == "Compare"
    assert "is refused" in app.error[0].value
    assert "02-candidate-1/requests.parquet" in app.error[0].value.replace("\\", "")
    assert not specs(app)
    both = open_page(root, "compare", study=[GAIN, KILLED])
    assert "is refused" in both.error[0].value
    assert both.title[0].value.replace("\\", "") == KILLED


def test_another_schema_is_shown_as_not_recorded(
    open_page: Callable[..., AppTest], own: Callable[..., Path]
) -> None:
    root = own(GAIN)
    plan = root / "studies" / GAIN / "plan.json"
    old = {"schema": "counterproof-plan/0", "experiment": "kv_cache"}
    plan.write_text(json.dumps(old))
    row = open_page(root).dataframe[0].value.iloc[0]
    assert row["status"] == "other schema"
    assert {row[name] for name in ("evidence", "metric", "effect", "verdict", "decision", "age", "kind")} == {
        "not recorded"
    }
    app = open_page(root, "compare", study=[GAIN])
    assert "Recorded by another version" in app.info[0].value
    assert not specs(app)


def test_fields_that_an_older_comparison_lacks_are_not_recorded(
    open_page: Callable[..., AppTest], own: Callable[..., Path], rewrite: Callable[..., None]
) -> None:
    root = own(GAIN)

    def strip(comparison: dict[str, Any]) -> None:
        for name in ("cost", "memory", "stages", "validity", "diffs", "hard_limits"):
            del comparison[name]
        for entry in comparison["metrics"].values():
            for name in ("noise_floor", "mde", "reason"):
                del entry[name]

    rewrite(root / "studies" / GAIN, "comparison", strip)
    app = open_page(root, "compare", study=[GAIN])
    said = words(app).replace("\\", "")
    assert "noise floor not recorded" in said
    assert "The cost matrix is not recorded" in said
    assert "Stage times: not recorded" in said
    assert "No validity check is recorded" in said


HOSTILE = "<script>alert(1)<b> ![x](y) :red[x] 日本語 \u202e$x$"


def test_hostile_and_unicode_names_are_shown_and_inert(
    open_page: Callable[..., AppTest], judged: Callable[..., Path], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    judged(
        root,
        study=HOSTILE,
        experiment="[x](javascript:alert(1))",
        new_tokens=4,
        prompt_text="</script><script>alert(2)</script>",
    )
    listed = open_page(root)
    row = listed.dataframe[0].value.iloc[0]
    assert row["study"] == HOSTILE.replace("\u202e", "\\u202e")
    assert "<" not in row["open"]
    app = open_page(root, "compare", study=[HOSTILE])
    assert app.success
    assert "<script>" not in app.title[0].value
    assert "\\<script\\>" in app.title[0].value
    said = words(app)
    for live in ("<script>", "![x]", ":red[x]", "$x$", "\u202e"):
        assert live not in said, live
    assert "alert(2)" not in said + json.dumps(specs(app))


def test_a_running_study_has_no_verdict(open_page: Callable[..., AppTest], own: Callable[..., Path]) -> None:
    import fcntl

    root = own(GAIN)
    with (root / "studies" / GAIN / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert open_page(root).dataframe[0].value.iloc[0]["status"] == "running"
        app = open_page(root, "compare", study=[GAIN])
        assert "Still running" in app.info[0].value
        assert not specs(app)
    assert open_page(root).dataframe[0].value.iloc[0]["status"] == "complete"


def test_a_calibration_study_claims_nothing(
    open_page: Callable[..., AppTest], judged: Callable[..., Path], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    judged(root, study="calibration-1", calibration=True, new_tokens=4, guardrails=())
    app = open_page(root, "compare", study=["calibration-1"])
    said = words(app).replace("\\", "")
    assert "Gain:" not in said
    assert "A calibration study has no candidate" in said
