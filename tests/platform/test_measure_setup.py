"""What is set up before a load is charged: as time of its own, in a throughput that counts it, and as a cost."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from counterproof.decide.answers import cost_went
from counterproof.measure.compare import compare
from counterproof.measure.load import RunData, StudyData, load_study

MS = 400.0


@pytest.fixture(scope="module")
def folder(synthetic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("setup")
    path: Path = synthetic.build(store, synthetic.StudyModel(new_tokens=8, prompt_tokens=20))
    return path


def with_setup(run: RunData) -> RunData:
    run.__dict__["events"] = [*run.events, {"kind": "setup", "time_ns": 1, "documents": 2, "ms": MS}]
    return run


@pytest.fixture(scope="module")
def study(folder: Path) -> StudyData:
    """The sealed study, as if its candidate had uploaded documents before each load."""
    found = load_study(folder)
    for (_, arm), run in found.runs.items():
        if arm == "candidate":
            with_setup(run)
    return found


def cell(comparison: dict[str, Any]) -> dict[str, Any]:
    (one,) = [c for c in comparison["cost"] if (c["stage"], c["resource"]) == ("state", "startup")]
    return dict(one)


def test_the_time_of_the_set_up_is_in_a_throughput_of_its_own(study: StudyData) -> None:
    metrics = compare(study)["metrics"]
    load, whole = metrics["throughput_tok_s"]["arms"], metrics["throughput_setup_tok_s"]["arms"]
    assert whole["baseline"]["per_block"] == load["baseline"]["per_block"]
    for block, plain, charged in zip(
        study.complete_blocks, load["candidate"]["per_block"], whole["candidate"]["per_block"], strict=True
    ):
        tokens = float(study.runs[(block, "candidate")].requests["output_tokens"].sum())
        assert math.isclose(tokens / charged - tokens / plain, MS / 1000, rel_tol=1e-9)
    assert metrics["setup_ms"]["arms"]["candidate"]["per_block"] == [MS] * 6
    assert metrics["setup_ms"]["arms"]["baseline"]["per_block"] == [0.0] * 6
    assert metrics["setup_ms"]["effects"]["candidate"]["difference"]["mean"] == MS


def test_the_set_up_is_a_cost_that_the_report_names(study: StudyData) -> None:
    comparison = compare(study)
    found = cell(comparison)
    assert (found["status"], found["baseline"], found["candidate"]) == ("measured", 0.0, MS)
    answer = cost_went(comparison)
    assert ("state", "startup") in {(c["stage"], c["resource"]) for c in answer["cells"]}
    assert "et-up before the load (documents uploaded): 0 ms to 400.0 ms" in answer["text"]


def test_a_study_without_a_set_up_says_nothing_of_one(folder: Path) -> None:
    comparison = compare(load_study(folder))
    assert not {"setup_ms", "throughput_setup_tok_s"} & set(comparison["metrics"])
    assert cell(comparison)["reason"] == "start-up is timed as a whole"
