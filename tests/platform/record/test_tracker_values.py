"""What arrives in the tracker: whole configurations, one value a metric, an end for every run, no invented number."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterproof.record import canonical, mlflow_view
from counterproof.record.mlflow_text import PARAM_LIMIT, TAG_LIMIT, fitted
from counterproof.record.mlflow_view import Tracker
from counterproof.record.verify import verify_study

LONG = "the candidate died: " + "x" * 20_000
FIELDS = {"blocks": 1, "requests": 12, "new_tokens": 6, "prompt_tokens": 16, "equivalence": False}


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory, synthetic: ModuleType) -> Iterator[tuple[Any, Any]]:
    """(verified study, its tracker): a run was killed, another failed for a reason that is 20,000 characters long."""
    patch = pytest.MonkeyPatch()
    # A variable of the user's that would make MLflow cut in silence.
    patch.setenv("MLFLOW_TRUNCATE_LONG_VALUES", "true")
    root = tmp_path_factory.mktemp("tracker")
    model = synthetic.StudyModel(
        study="s", killed=((0, "again"),), crashed=((0, "candidate"),), crash_reason=LONG, **FIELDS
    )
    study = verify_study(synthetic.build(root, model))
    tracker = Tracker(f"sqlite:///{root}/mlflow.db", root / "artifacts")
    assert mlflow_view.ingest(tracker, study) is True
    yield study, tracker
    patch.undo()


def runs_of(tracker: Tracker) -> dict[str, Any]:
    client = tracker.client()
    experiment = client.get_experiment_by_name("kv_cache").experiment_id
    runs = mlflow_view.search(client, [experiment])
    found = {run.info.run_name: run for run in runs}
    assert len(found) == len(runs), "a run is there twice"
    return found


def test_a_configuration_comes_back_whole(mirrored: tuple[Any, Any]) -> None:
    study, tracker = mirrored
    sealed = 0
    for run in study.runs:
        found = runs_of(tracker)[f"s/{run.folder.name}"].data
        config = study.plan["arms"][run.manifest["arm"]]["config"]
        texts = {key: v if isinstance(v, str) else canonical.dumps(v).decode() for key, v in config.items()}
        assert found.params == texts
        read = {key: v if isinstance(config[key], str) else json.loads(v) for key, v in found.params.items()}
        assert canonical.sha256_json(read) == found.tags["counterproof.config_sha256"]
        sealed += 1
    assert sealed == 3


def test_every_run_has_an_end_and_none_runs_on(mirrored: tuple[Any, Any]) -> None:
    states = {name: (run.info.status, run.info.end_time) for name, run in runs_of(mirrored[1]).items()}
    assert states["s/00-again-1"][0] == "KILLED"
    assert [states[f"s/00-candidate-{n}"][0] for n in (1, 2, 3)] == ["FAILED"] * 3
    assert "RUNNING" not in {status for status, _ in states.values()}
    assert all(end for _, end in states.values())


def test_a_study_that_is_mirrored_again_has_one_value_a_metric(mirrored: tuple[Any, Any]) -> None:
    study, tracker = mirrored
    client = tracker.client()
    client.set_tag(
        runs_of(tracker)["s"].info.run_id, "counterproof.state", "of an ingestion that was cut off"
    )
    assert mlflow_view.ingest(tracker, study) is True
    values = 0
    for run in runs_of(tracker).values():
        for name in run.data.metrics:
            (point,) = client.get_metric_history(run.info.run_id, name)
            assert point.step == 0
            values += 1
    assert values >= len(study.runs)


def test_a_reason_that_is_too_long_is_cut_and_says_so(mirrored: tuple[Any, Any]) -> None:
    tags = runs_of(mirrored[1])["s/00-candidate-1"].data.tags
    assert tags["counterproof.reason"] == fitted(LONG, TAG_LIMIT)
    assert len(tags["counterproof.reason"]) == TAG_LIMIT
    assert (
        f"[cut here: {len(LONG)} characters, sha256 {canonical.sha256_bytes(LONG.encode())}]"
        in (tags["counterproof.reason"])
    )


def test_what_is_not_finite_never_becomes_a_number(mirrored: tuple[Any, Any]) -> None:
    """Infinity would become 1.8e308 and NaN 0, and either would look measured."""
    client = mirrored[1].client()
    run_id = client.create_run(client.create_experiment("values")).info.run_id
    values = {"whole": 3.0, "nan": math.nan, "up": math.inf, "down": -math.inf, "none": None}
    mlflow_view._log_values(client, run_id, values, {"up": "every request failed"}, 1)
    data = client.get_run(run_id).data
    assert data.metrics == {"whole": 3.0}
    assert {name: data.tags[f"not_measured.{name}"] for name in values if name != "whole"} == {
        "nan": "not measured",
        "up": "every request failed",
        "down": "not measured",
        "none": "not measured",
    }


@given(st.text(max_size=40).map(lambda text: text * 200), st.sampled_from([PARAM_LIMIT, TAG_LIMIT, 200]))
def test_no_two_texts_look_alike_after_cutting(text: str, limit: int) -> None:
    cut = fitted(text, limit)
    assert len(cut) <= limit
    assert (cut == text) == (len(text) <= limit)
    assert fitted(text + "!", limit) != cut
