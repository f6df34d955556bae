"""Failures of other harnesses, each with the test that keeps it from happening here; those that had none stand below."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from counterproof.measure.latency import request_latencies, samples
from counterproof.measure.metrics import summarise
from counterproof.record import machine
from counterproof.record.schema import RESOURCES

HERE = Path(__file__).resolve().parent
# What went wrong elsewhere -> "file::test" below tests/platform.
CASES: dict[str, str] = {
    "one token has no time per token": "test_measure_latency.py::test_one_token_has_no_tpot_and_leaves_its_sample",
    "all requests fail and the percentile is 0 ms": "test_measure_percentile.py::test_failures_count_as_infinite",
    "a first token before its request": "test_measure_latency.py::test_impossible_stamps_are_found",
    "an empty first chunk taken for a token": (
        "server/test_http_wire.py::test_an_empty_first_chunk_or_a_role_is_no_first_token"
    ),
    "an error inside a stream taken for success": "server/test_http_wire.py::test_an_error_inside_a_stream_is_no_success",
    "time per token by the length asked for": "test_field_failures.py::test_time_per_token_is_of_the_tokens_that_came",
    "several tokens in a chunk": "run/test_server_runs.py::test_tpot_of_a_server_exists_only_where_a_chunk_is_a_token",
    "counts that disagree": "test_measure_client.py::test_counts_that_disagree_are_refuted",
    "a client that hides the queue": (
        "server/test_open_loop.py::test_a_queue_at_the_server_shows_in_the_latency_from_the_schedule"
    ),
    "a run that hangs": "run/test_study_loop.py::test_a_hanging_run_ends_at_its_deadline_without_an_orphan",
    "a cache warm from an earlier run": "test_bad_studies.py::test_a_bad_study_is_invalid_for_the_right_reason",
    "a hidden cache": "run/test_probe_runs.py::test_a_hidden_cache_is_found_by_its_time_alone",
    "arrivals that are not Poisson": (
        "workload/test_arrivals.py::test_poisson_arrivals_have_dispersion_one_and_come_from_one_generator"
    ),
    "failures averaged away": "test_field_failures.py::test_a_failed_request_leaves_no_mean",
    "configured but not applied": "run/test_study_loop.py::test_a_factor_that_the_engine_ignores_is_refused",
    "the wrong code measured": "run/test_study_loop.py::test_a_process_that_would_import_other_code_measures_nothing",
    "nothing measured and a verdict all the same": "test_measure_validity.py::test_no_block_at_all",
    "a gate that knows its own fixture only": (
        "run/test_study_loop.py::test_a_whole_study_is_recorded_verified_and_can_be_compared"
    ),
    "a cold start of the tracker's database by many": (
        "run/test_parallel_store.py::test_six_processes_register_seal_and_refresh_a_fresh_store_at_once"
    ),
    "a killed run that runs for ever": "run/test_kills.py::test_twenty_kills_cost_attempts_and_nothing_else",
    "a number that is not finite": "test_measure_compare.py::test_nothing_written_is_non_finite",
    "a value cut by the tracker": "test_field_failures.py::test_long_values_are_never_cut_by_the_tracker",
    "a second value at the same step": (
        "record/test_views.py::test_a_changed_outcome_replaces_the_runs_instead_of_adding_to_them"
    ),
    "two workloads of one digest": "workload/test_sealed_workload.py::test_every_field_belongs_to_the_identity",
    "uncommitted changes unseen": (
        "record/test_environment_record.py::test_every_uncommitted_change_is_part_of_the_identity"
    ),
    "a reader that locks the writer out": "record/test_views.py::test_readers_keep_their_snapshot_while_the_writer_works",
    "overrides that Hydra bends": "plan/test_overrides.py::test_anything_else_is_refused_with_exit_code_2",
    "an override kept of two": (
        "plan/test_overrides.py::test_a_repeated_key_is_refused_although_hydra_would_keep_the_last"
    ),
    "one process for all runs": "run/test_study_loop.py::test_a_whole_study_is_recorded_verified_and_can_be_compared",
    "outputs that move with the batch": (
        "test_measure_divergence.py::test_a_near_tie_is_harmless_and_only_below_the_threshold"
    ),
    "one memory taken for another": "test_field_failures.py::test_every_kind_of_memory_has_a_column_of_its_own",
    "a clock that was throttled": "test_field_failures.py::test_the_processors_clock_is_recorded",
    "no data taken for success": "test_decide_rule.py::test_a_condition_that_is_not_met_prevents_promotion",
    "two writers of one store": "record/test_views.py::test_only_one_process_writes_the_views",
}


@pytest.mark.parametrize("case", list(CASES))
def test_every_case_has_its_test(case: str) -> None:
    file, name = CASES[case].split("::")
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def frame(**columns: list[object]) -> pd.DataFrame:
    """Two requests of 24 tokens asked for; the second stopped after 3."""
    base: dict[str, list[object]] = {
        "request_index": [0, 1],
        "max_new_tokens": [24, 24],
        "output_tokens": [24, 3],
        "scheduled_ns": [0, 0],
        "sent_ns": [0, 0],
        "first_token_ns": [10_000_000, 10_000_000],
        "last_token_ns": [240_000_000, 30_000_000],
        "done_ns": [240_000_000, 30_000_000],
        "status": ["ok", "ok"],
    }
    return pd.DataFrame({**base, **columns})


def test_time_per_token_is_of_the_tokens_that_came() -> None:
    found = request_latencies(frame())
    assert found["tpot_ms"].tolist() == [10.0, 10.0]


def test_a_failed_request_leaves_no_mean() -> None:
    sample = samples(frame(status=["ok", "error"]), "e2e_ms")
    assert np.isinf(sample).sum() == 1
    mean = summarise(sample, "mean")
    assert mean.value is None
    assert "1 of 2 requests failed" in mean.reason


def test_every_kind_of_memory_has_a_column_of_its_own() -> None:
    kinds = {"rss_bytes", "gpu_allocated_bytes", "gpu_reserved_bytes", "gpu_used_bytes", "kv_bytes_used"}
    assert kinds <= set(RESOURCES.names)


def test_the_processors_clock_is_recorded() -> None:
    mhz = machine.cpu_mhz()
    if mhz is None:
        pytest.skip("this machine's kernel does not tell the clock")
    assert math.isfinite(mhz) and mhz > 100
    assert "cpu_mhz" in RESOURCES.names


def test_long_values_are_never_cut_by_the_tracker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from counterproof.record.mlflow_view import Tracker

    # A variable of the user's that would make the tracker cut, and one that would hijack every run.
    monkeypatch.setenv("MLFLOW_TRUNCATE_LONG_VALUES", "true")
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    client = Tracker(f"sqlite:///{tmp_path}/t.db", None).client()
    run = client.create_run(client.create_experiment("e")).info.run_id
    assert run != "0" * 32
    client.log_param(run, "config", "x" * 5999)
    assert client.get_run(run).data.params["config"] == "x" * 5999
    with pytest.raises(Exception, match=r"6000|length"):
        client.log_param(run, "longer", "x" * 6001)
