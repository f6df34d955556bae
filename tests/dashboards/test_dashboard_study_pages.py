"""Pages of one study: stages and memory, configuration differences, prefix misses, and what marks a study."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from counterproof_dashboard import data, marks, roofline, three_diffs
from counterproof_dashboard.data import Study

GAIN, KILLED = "20260102-030405-kv_cache", "20260103-000000-kv_cache"
EXPLORATORY, INVALID, UNFINISHED = "20260104-000000-null", "20260105-000000-invalid", "20260106-000000-lost"
HOSTILE = "</script><script>alert(1)</script> 日本語 \u202e"
SUPPORT = Path(__file__).resolve().parents[1] / "support"
PAGES = ("stages", "configuration", "misses")
PLACED = {
    "arithmetic_used": 0.25,
    "bound_by": "memory_traffic",
    "bytes_s": 2e10,
    "flops_s": 5e10,
    "intensity": 2.5,
    "memory_used": 0.8,
    "outside_compute": 0.1,
    "phase": "decode",
}


def words(app: AppTest) -> str:
    kinds = ("title", "subheader", "markdown", "caption", "success", "error", "warning", "info", "code")
    return "\n".join(str(element.value) for kind in kinds for element in app.get(kind)).replace("\\", "")


Specs = Callable[[AppTest], dict[str, dict[str, Any]]]


def rows_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for rows in spec["datasets"].values() for row in rows]


@pytest.mark.parametrize("page", PAGES)
def test_no_study_one_study_and_many(
    open_page: Callable[..., AppTest], gallery: Path, tmp_path: Path, page: str, specs_of: Specs
) -> None:
    assert "There is no study in" in words(open_page(tmp_path / "none", page))
    unnamed = open_page(gallery, page)
    assert "Choose a study" in words(unnamed)
    assert len(unnamed.selectbox[0].options) == 5
    assert not specs_of(unnamed)
    several = open_page(gallery, page, study=[GAIN, KILLED])
    assert "the link names several" in several.error[0].value
    assert not specs_of(several)
    dead = open_page(gallery, page, study=[GAIN, "deleted"])
    assert "There is no study" in dead.error[0].value
    assert not specs_of(dead)
    assert not dead.dataframe


@pytest.mark.parametrize("page", PAGES)
def test_every_kind_of_study_opens_without_an_error(
    open_page: Callable[..., AppTest], gallery: Path, page: str
) -> None:
    for name in (KILLED, EXPLORATORY, INVALID, UNFINISHED):
        app = open_page(gallery, page, study=[name])
        assert app.selectbox[0].value == name
        assert len(words(app)) > 100


@pytest.mark.parametrize("page", PAGES)
def test_an_older_schema_is_not_recorded_and_a_changed_record_is_refused(
    open_page: Callable[..., AppTest], own: Callable[..., Path], page: str, specs_of: Specs
) -> None:
    root = own(GAIN, KILLED)
    (root / "studies" / GAIN / "plan.json").write_text(
        '{"schema": "counterproof-plan/0", "arms": {"candidate": 1}}'
    )
    old = open_page(root, page, study=[GAIN])
    assert "recorded" in words(old)
    assert not specs_of(old)
    assert not old.dataframe
    path = root / "studies" / KILLED / "runs" / "02-candidate-1" / "stages.parquet"
    path.write_bytes(path.read_bytes() + b"x")
    app = open_page(root, page, study=[KILLED])
    assert "is refused" in app.error[0].value
    assert not specs_of(app)
    assert not app.dataframe


def test_stages_show_every_run_and_the_phases_of_one(
    open_page: Callable[..., AppTest], gallery: Path, specs_of: Specs
) -> None:
    app = open_page(gallery, "stages", study=[GAIN])
    found = specs_of(app)
    assert {"Which stage it came from", "Stage times, block by block"} <= set(found)
    bars = rows_of(found["Stage times, block by block"])
    assert {row["run"] for row in bars} == {
        f"block {b} · {arm}" for b in range(6) for arm in ("baseline", "candidate")
    }
    decode = {row["arm"]: row["ms"] for row in bars if row["name"] == "compute: decode" and row["block"] == 0}
    # Seven steps of 20 ms, half of that with the cache.
    assert decode["baseline"] == pytest.approx(140, rel=0.1)
    assert decode["candidate"] == pytest.approx(70, rel=0.1)
    memory = rows_of(found["KV blocks in use: candidate"])
    assert {row["phase"] for row in memory if "phase" in row} == {"prefill", "decode"}
    assert sum(row.get("phase") == "prefill" for row in memory) == 12
    # Prompts of 44 to 52 tokens and 8 more, in blocks of 16.
    assert max(row["value"] for row in memory if "value" in row) == 4
    assert "highest 4 blocks of 256" in found["KV blocks in use: candidate"]["title"]["subtitle"][0]
    app.button_group(key="stage-arms").set_value(["slowed"]).run()
    slowed = rows_of(specs_of(app)["Stage times, block by block"])
    assert {row["arm"] for row in slowed} == {"slowed"}


def test_the_cost_matrix_has_no_blank_and_says_why(open_page: Callable[..., AppTest], gallery: Path) -> None:
    app = open_page(gallery, "stages", study=[GAIN])
    matrix, why = app.dataframe[0].value, app.dataframe[1].value
    assert list(matrix["Stage"]) == ["whole", "input", "state", "compute", "output"]
    cells = matrix.drop(columns="Stage").to_numpy().ravel()
    assert all(cells)
    silent = [cell for cell in cells if cell == "not measured"]
    assert len(silent) == len(why) > 5
    assert all(why["Why it was not measured"])


def test_the_roofline_shows_both_arms_and_whether_the_plan_was_right(
    open_page: Callable[..., AppTest], own: Callable[..., Path], rewrite: Callable[..., None], specs_of: Specs
) -> None:
    root = own(GAIN)
    assert "Not placed against the roofs" in words(open_page(root, "stages", study=[GAIN]))

    def place(comparison: dict[str, Any]) -> None:
        comparison["bottleneck"] = {
            "stated": "arithmetic",
            "real": "memory_traffic",
            "confirmed": False,
            "phase": "decode",
            "reason": "",
            "arms": {"baseline": PLACED, "candidate": {**PLACED, "intensity": 10.0, "flops_s": 1e11}},
            "rates": {"memory_bytes_s": 2.5e10},
        }

    rewrite(root / "studies" / GAIN, "comparison", place)
    app = open_page(root, "stages", study=[GAIN])
    assert "NOT the real one: memory traffic was" in app.error[0].value.replace("\\", "")
    drawn = rows_of(specs_of(app)["Against this machine's roofs"])
    points = {row["arm"]: (row["intensity"], row["gflops"]) for row in drawn if "arm" in row}
    assert points == {"baseline": (2.5, 50.0), "candidate": (10.0, 100.0)}
    ridge = [row for row in drawn if "name" not in row and "arm" not in row][1]
    assert ridge["intensity"] * 25 == pytest.approx(ridge["gflops"])


@pytest.mark.parametrize("broken", [None, 0, -1.0, "x", float("nan"), True])
def test_a_placement_that_is_no_number_is_never_drawn(broken: Any) -> None:
    arms = {"baseline": {**PLACED, "flops_s": broken}}
    comparison = {"bottleneck": {"real": "arithmetic", "arms": arms, "rates": {"memory_bytes_s": 1e9}}}
    found = roofline.of_study(Study("s", Path("s"), data.COMPLETE, comparison=comparison))
    assert found.points == ()
    assert "not recorded" in found.verdict


def test_three_differences_are_green_and_list_what_is_excepted(
    open_page: Callable[..., AppTest], gallery: Path
) -> None:
    app = open_page(gallery, "configuration", study=[GAIN])
    assert len(app.success) == 3
    assert not app.error
    asked, ran = app.dataframe[0].value, app.dataframe[1].value
    assert list(asked["Key"]) == ["engine.kv_cache.enabled"]
    assert list(asked.iloc[0])[1:] == ["false", "true", "the factor"]
    assert list(ran["Key"]) == ["kv_cache.enabled", "kv_cache.blocks", "kv_cache.bytes_per_token"]
    assert list(ran.iloc[:, 3]) == ["the factor", *["excepted: declared to follow"] * 2]
    app.toggle(key="all-keys").set_value(True).run()
    assert len(app.dataframe[0].value) == 7
    app.toggle(key="all-keys").set_value(False).run()
    app.button_group(key="diff-arm").set_value("slowed").run()
    assert list(app.dataframe[0].value["Key"]) == ["engine.inject.step_delay_us"]
    assert not app.error


def test_a_second_key_and_another_machine_are_red(
    open_page: Callable[..., AppTest], judged: Callable[..., Path], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    judged(
        root,
        study="two",
        new_tokens=4,
        extra_effective={"numerics.mode": None, HOSTILE: "null"},
        environment_change={"python": "3.12.0"},
    )
    app = open_page(root, "configuration", study=["two"])
    said = [box.value.replace("\\", "") for box in app.error]
    assert any(text.startswith("**3 keys differ where one may: </script>") for text in said)
    assert any("1 key differs where none may: python" in text for text in said)
    ran = app.dataframe[1].value.set_index("Key")
    assert list(ran.loc["numerics.mode"])[:2] == ['"fast"', "null"]
    assert list(ran.loc[HOSTILE.replace("\u202e", "\\u202e")])[:2] == ["(not there)", '"null"']
    assert "<script>" not in "".join(str(box.value) for box in app.error)


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (16, 16.0, True),
        (1, True, True),
        (None, "null", True),
        ("16", 16, True),
        (None, None, False),
        ([1], [1], False),
    ],
)
def test_values_of_different_types_are_different(one: Any, other: Any, differs: bool) -> None:
    arms = {"baseline": {"config": {"k": one}}, "candidate": {"config": {"k": other}}}
    study = Study("s", Path("s"), data.COMPLETE, plan={"arms": arms, "factor": {"path": "k"}})
    diff = three_diffs.configuration(study, "candidate")
    assert [leaf.differs for leaf in diff.leaves] == [differs]
    assert diff.holds is differs
    gone = Study("s", Path("s"), data.COMPLETE, plan={"arms": {**arms, "candidate": {"config": {}}}})
    assert three_diffs.configuration(gone, "candidate").leaves[0].other == "(not there)"


def _packets() -> ModuleType:
    key = "counterproof_tests_packet_study"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, SUPPORT / "packet_study.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


def test_prefix_misses_of_sealed_prompts_are_named_and_explained(
    open_page: Callable[..., AppTest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packets = _packets()
    plain = packets.requests

    def sharing(seed: int, block: int, count: int, prompt_tokens: int, new_tokens: int) -> list[Any]:
        found = plain(seed, block, count, 40, new_tokens)
        first = found[0].token_ids
        ids = [r.token_ids for r in found]
        if len(ids) > 2:
            ids[1] = first[:20] + ids[1][20:]  # four tokens over a block
            ids[2] = (first[0] + 1, *first[1:])  # one token at the start
        return [
            type(r)(**{**r.row(), "token_ids": i, "stop": (), "stop_token_ids": ()})
            for r, i in zip(found, ids, strict=True)
        ]

    monkeypatch.setattr(packets, "requests", sharing)
    model = packets.fake_model(tmp_path / "model")
    folder = packets.build(tmp_path / "store", model, study="shared", requests=5, blocks=6)
    app = open_page(tmp_path / "store", "misses", study=["shared"])
    table = app.dataframe[0].value.set_index("Request")
    assert list(table.index[:2]) == [2, 1]
    assert list(table.loc[2, ["Nearest earlier", "Same at the start", "Same at the end", "Can be hit"]]) == [
        0,
        0,
        39,
        0,
    ]
    assert list(
        table.loc[1, ["Nearest earlier", "Same at the start", "Can be hit", "Shared, computed again"]]
    ) == [0, 20, 16, 4]
    assert "Token ids are shown instead of text" in words(app)
    assert "They part at token 0" in words(app)
    app.selectbox(key="miss-second-0").set_value(1).run()
    said = words(app)
    assert "the first 20 are the same, of which the second request can hit 16" in said
    assert "4 of 20 common tokens do not fill a block of 16" in said
    (folder / "workloads" / "00.parquet").unlink()
    assert "is refused" in open_page(tmp_path / "store", "misses", study=["shared"]).error[0].value


def test_extended_exploratory_and_invalid_studies_are_marked(
    open_page: Callable[..., AppTest], own: Callable[..., Path], rewrite: Callable[..., None], specs_of: Specs
) -> None:
    root = own(GAIN, INVALID, EXPLORATORY)

    def extend(comparison: dict[str, Any]) -> None:
        comparison["extensions"] = [{"blocks": 8, "reason": f"A/A is imprecise {HOSTILE}"}]

    rewrite(root / "studies" / GAIN, "comparison", extend)
    listed = open_page(root).dataframe[0].value.set_index("study")
    assert listed.loc[GAIN, "kind"] == "registered, extended to 8 blocks"
    assert listed.loc[EXPLORATORY, "kind"] == "exploratory"
    assert listed.loc[INVALID, "evidence"] == "INVALID"
    one = open_page(root, "compare", study=[GAIN])
    assert "Reserve blocks were called up 1 time, from 6 to 8 blocks" in words(one)
    assert "<script>" not in "".join(str(m.value) for m in one.markdown)
    several = open_page(root, "compare", study=[GAIN, INVALID, EXPLORATORY])
    labels = {row["label"] for row in rows_of(specs_of(several)["What moved"]) if "label" in row}
    assert any(label.startswith(f"{INVALID} (INVALID) · ") for label in labels)
    assert any(label.startswith(f"{EXPLORATORY} (exploratory) · ") for label in labels)
    assert any(label.startswith(f"{GAIN} (extended) · ") for label in labels)
    assert [mark.word for mark in marks.marks(data.read_study(data.store_of(root), INVALID))] == ["INVALID"]


def test_quality_is_shown_in_its_own_unit(
    open_page: Callable[..., AppTest], own: Callable[..., Path], rewrite: Callable[..., None]
) -> None:
    root = own(GAIN)

    def moved(comparison: dict[str, Any]) -> None:
        comparison["quality"] = {
            "all": {"kl_mean": 0.0123, "top1_agreement": 0.975},
            "requests": [],
            "reason": "",
        }

    def bounded(decision: dict[str, Any]) -> None:
        rail = {"statistic": "total", "kind": "exact", "status": "HARM", "reason": "r", "ratio": None}
        decision["guardrails"] = [
            {**rail, "metric": "quality_kl_mean", "margin": 0.01, "value": 0.0123, "limit": 0.01},
            {**rail, "metric": "quality_top1", "margin": 0.05, "value": 0.975, "limit": 0.95},
        ]

    rewrite(root / "studies" / GAIN, "comparison", moved)
    rewrite(root / "studies" / GAIN, "decision", bounded)
    app = open_page(root, "compare", study=[GAIN])
    rails = app.table[1].value.map(lambda cell: str(cell).replace("\\", "")).set_index("Guardrail")
    assert list(rails["Measured"]) == ["0.0123 nats", "97.5 %"]
    assert list(rails["Bound"]) == ["at most 0.01 nats", "at least 95 %"]
    quality = app.table[2].value.map(lambda cell: str(cell).replace("\\", "")).set_index("Quality")
    assert list(quality["Candidate"])[:3] == ["0.0123 nats", "not recorded", "97.5 %"]


def test_a_hostile_configuration_value_stays_text(open_page: Callable[..., AppTest], gallery: Path) -> None:
    effective = yaml.safe_load(
        (gallery / "studies" / GAIN / "runs" / "00-baseline-1" / "config" / "effective.yaml").read_text()
    )
    leaves = three_diffs._leaves({**effective, "x": HOSTILE}, {**effective, "x": None}, {"x"}, set())
    assert leaves[0].baseline == json.dumps(HOSTILE, ensure_ascii=False).replace("\u202e", "\\u202e")
    assert leaves[0].other == "null"
    assert open_page(gallery, "configuration", study=[GAIN]).title[0].value == "Configuration diff"
