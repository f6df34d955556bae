"""The study loop: order, refusals, recovery and resumption, with a fake target in real processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof.errors import EvidenceError, ExecutionError, InputError, RefusedError, SetupError
from counterproof.measure.load import load_study
from counterproof.record import canonical, code_identity, journal, manifest, starts
from counterproof.record.store import Store, StudyPaths, open_store
from counterproof.record.verify import verify_study
from counterproof.run import assemble, places, register
from counterproof.run.places import Place
from counterproof.run.runner import StudyRunner
from counterproof.workload import sealed

pytestmark = pytest.mark.timeout(120)
NewStudy = Callable[..., StudyPaths]
RunnerOf = Callable[[StudyPaths], StudyRunner]


def kinds(paths: StudyPaths) -> list[str]:
    return [event["kind"] for event in journal.read(paths.journal).events]


def test_a_whole_study_is_recorded_verified_and_can_be_compared(
    new_study: NewStudy, runner_of: RunnerOf, notes: Any
) -> None:
    paths = new_study("study.blocks=1")
    runner = runner_of(paths)
    runner.run_missing()
    study = verify_study(paths.folder)
    assert [run.folder.name for run in study.runs] == [
        *("eq-baseline-1", "eq-candidate-1"),
        *(f"00-{arm}-1" for arm in study.plan["schedule"][0]),
    ]
    assert runner.missing() == []
    for run in study.runs:
        assert sorted(run.manifest["files"]) == sorted(
            [
                *("requests.parquet", "tokens.parquet", "stages.parquet", "resources.parquet"),
                *("outputs.jsonl", "events.jsonl", "log.txt", "environment.json"),
                *(f"config/{name}.yaml" for name in ("overrides", "composed", "resolved", "effective")),
            ]
        )
        assert run.manifest["counters"].keys() >= {"tokens_computed", "steps"}
    data = load_study(paths.folder)
    run = data.runs[(0, "baseline")]
    assert run.requests["status"].tolist() == ["ok"] * 3
    assert len(run.tokens) == 12
    assert {"sampler", "engine"} == set(run.resources["source"])
    assert run.manifest["startup_ms"] > 0
    # 3 requests of 4 tokens: work of the measured part alone, without the warm-up.
    assert run.counters["tokens_generated"] == 12
    assert data.runs[(0, "candidate")].counters["tokens_computed"] < run.counters["tokens_computed"]
    difference = [e for e in data.equivalence["baseline"].events if e["kind"] == "batch_logit_difference"]
    assert [e["max_abs"] for e in difference] == [0.25]
    assert len({r.manifest["env_id"] for r in study.runs}) == 1
    assert any(line.startswith("requests 0/3") for line in notes.lines)


def test_slowed_is_slower_by_the_injected_delay(new_study: NewStudy, runner_of: RunnerOf) -> None:
    paths = new_study("study.blocks=1", "study.equivalence_requests=0", "study.slowed_delay_us=20000")
    runner_of(paths).run_missing()
    runs = load_study(paths.folder).runs
    gaps = {
        arm: runs[(0, arm)].tokens.groupby("request_index")["time_ns"].diff().median()
        for arm in ("baseline", "slowed")
    }
    assert 20e6 <= gaps["slowed"] - gaps["baseline"] < 40e6


@pytest.mark.parametrize("place", [Place(0, "candidate"), Place(None, "candidate"), Place(1, "candidate")])
def test_a_candidate_before_a_sealed_baseline_is_refused(
    new_study: NewStudy, runner_of: RunnerOf, place: Place
) -> None:
    paths = new_study()
    with pytest.raises(RefusedError, match="before a sealed baseline"):
        runner_of(paths).run_place(place)
    assert kinds(paths) == ["study_started"]
    assert not any(paths.runs.iterdir())


def test_a_sealed_place_is_never_repeated_and_an_unplanned_one_refused(
    new_study: NewStudy, runner_of: RunnerOf
) -> None:
    paths = new_study("study.equivalence_requests=0")
    runner = runner_of(paths)
    runner.run_place(Place(0, "baseline"))
    with pytest.raises(RefusedError, match="never repeated"):
        runner.run_place(Place(0, "baseline"))
    for place in (Place(7, "baseline"), Place(0, "other"), Place(None, "baseline")):
        with pytest.raises(RefusedError, match="not in the plan"):
            runner.run_place(place)


def test_an_effective_difference_that_nothing_declared_is_refused_and_listed(
    new_study: NewStudy, runner_of: RunnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = new_study("study.equivalence_requests=0")
    runner = runner_of(paths)
    runner.run_place(Place(0, "baseline"))
    fault = {"candidate_effective": {"scheduler.token_budget": 7}, "candidate_identity": {"threads.count": 2}}
    monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps(fault))
    with pytest.raises(RefusedError) as caught:
        runner.run_place(Place(0, "candidate"))
    assert caught.value.details == [
        "environment env.sha256: " + caught.value.details[0].partition(": ")[2],
        "environment threads.count: 1 -> 2",
        "effective scheduler.token_budget: 2048 -> 7",
    ] or caught.value.details == [
        "environment threads.count: 1 -> 2",
        "effective scheduler.token_budget: 2048 -> 7",
    ]
    assert kinds(paths)[-1] == "run_refused"
    assert not manifest.is_sealed(paths.runs / "00-candidate-1")
    verify_study(paths.folder)


def test_a_factor_that_the_engine_ignores_is_refused(
    new_study: NewStudy, runner_of: RunnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps({"ignore_factor": True}))
    paths = new_study("study.equivalence_requests=0")
    runner = runner_of(paths)
    runner.run_place(Place(0, "baseline"))
    with pytest.raises(RefusedError, match=r"did not apply engine\.kv_cache\.enabled"):
        runner.run_place(Place(0, "candidate"))


def test_another_model_or_commit_than_registered_is_refused_before_anything_starts(
    new_study: NewStudy, runner_of: RunnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = new_study()
    monkeypatch.setenv("COUNTERPROOF_FAKE_MODEL", "retrained")
    with pytest.raises(RefusedError) as caught:
        runner_of(paths).run_missing()
    assert any(line.startswith("model.weights_sha256: ") for line in caught.value.details)
    monkeypatch.delenv("COUNTERPROOF_FAKE_MODEL")
    from counterproof.record import code_identity

    other = code_identity.CodeIdentity("git", "1" * 40, lock_sha256="fixed")
    monkeypatch.setattr(code_identity, "identify", lambda start=None: other)
    with pytest.raises(RefusedError) as caught:
        runner_of(paths).run_missing()
    assert any(line.startswith("code.sha: ") for line in caught.value.details)
    assert kinds(paths) == ["study_started"]


def test_a_crashing_candidate_is_tried_as_often_as_planned_and_every_attempt_journalled(
    new_study: NewStudy, runner_of: RunnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = new_study("study.equivalence_requests=0")
    runner = runner_of(paths)
    runner.run_place(Place(0, "baseline"))
    monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps({"crash": "candidate"}))
    with pytest.raises(ExecutionError, match="killed by SIGKILL"):
        runner.run_place(Place(0, "candidate"))
    failed = [e["run"] for e in journal.read(paths.journal).events if e["kind"] == "run_failed"]
    assert failed == ["00-candidate-1", "00-candidate-2"]
    assert {folder.name for folder in paths.run_folders()} == {"00-baseline-1", *failed}
    monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps({"raise": "candidate"}))
    with pytest.raises(ExecutionError, match="RuntimeError: a fault on demand"):
        runner.run_place(Place(0, "candidate"))
    assert "a fault on demand" in (paths.runs / "00-candidate-3" / "log.txt").read_text()


def test_a_hanging_run_ends_at_its_deadline_without_an_orphan(
    new_study: NewStudy,
    runner_of: RunnerOf,
    monkeypatch: pytest.MonkeyPatch,
    measured_processes: Callable[[], list[str]],
) -> None:
    monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps({"hang": True}))
    paths = new_study("study.equivalence_requests=0", "study.run_deadline_s=3.0", "study.attempts=1")
    with pytest.raises(ExecutionError, match="deadline of 3 s"):
        runner_of(paths).run_place(Place(0, "baseline"))
    assert measured_processes() == []


def test_a_refused_request_is_a_row_and_harms_no_other(
    new_study: NewStudy, runner_of: RunnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERPROOF_FAKE", json.dumps({"refuse": 1}))
    paths = new_study("study.equivalence_requests=0", "workload.warmup_requests=0")
    runner_of(paths).run_place(Place(0, "baseline"))
    requests = load_study(paths.folder).runs[(0, "baseline")].requests
    assert requests["status"].tolist() == ["ok", "error", "ok"]
    assert requests["error"].tolist()[1] == "kv_capacity: it can never fit"
    assert requests["first_token_ns"].isna().tolist() == [False, True, False]


def test_a_request_past_its_time_is_aborted_and_called_a_timeout(
    new_study: NewStudy, runner_of: RunnerOf
) -> None:
    paths = new_study(
        "study.equivalence_requests=0", "workload.warmup_requests=0", "workload.request_timeout_s=0.000001"
    )
    runner_of(paths).run_place(Place(0, "baseline"))
    requests = load_study(paths.folder).runs[(0, "baseline")].requests
    assert requests["status"].tolist() == ["timeout"] * 3
    assert requests["finish_reason"].tolist() == ["abort"] * 3


def test_interruption_is_journalled_and_leaves_no_process(
    new_study: NewStudy,
    runner_of: RunnerOf,
    notes: Any,
    monkeypatch: pytest.MonkeyPatch,
    measured_processes: Callable[[], list[str]],
) -> None:
    paths = new_study("study.equivalence_requests=0")
    runner = runner_of(paths)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(notes, "requests_done", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runner.run_place(Place(0, "baseline"))
    last = journal.read(paths.journal).events[-1]
    assert (last["kind"], last["run"], last["reason"]) == ("run_lost", "00-baseline-1", "interrupted")
    assert measured_processes() == []
    monkeypatch.undo()


def test_recovery_takes_in_whole_records_and_journals_lost_ones(
    new_study: NewStudy, runner_of: RunnerOf
) -> None:
    paths = new_study("study.equivalence_requests=0")
    runner = runner_of(paths)
    runner.run_place(Place(0, "baseline"))
    events = journal.read(paths.journal).events
    # As if the harness had been killed between sealing and journalling, then at the start of the next run.
    lines = paths.journal.read_bytes().splitlines(keepends=True)
    paths.journal.write_bytes(b"".join(lines[:-1]))
    journal.Journal(paths.journal).append("run_started", run="00-again-1", block=0, arm="again", attempt=1)
    with pytest.raises(EvidenceError, match="journal does not know it"):
        verify_study(paths.folder)
    assert runner.recover() == ["00-again-1"]
    after = journal.read(paths.journal).events
    sealed_before = events[-1]["manifest_sha256"]
    recovered = [e for e in after if e["kind"] == "run_sealed"]
    assert [(e["run"], e["manifest_sha256"], e["recovered"]) for e in recovered] == [
        ("00-baseline-1", sealed_before, True)
    ]
    assert after[-1]["kind"] == "run_lost"
    assert places.next_key(Place(0, "again"), after).attempt == 2
    assert runner.recover() == []


def test_recovery_refuses_a_tampered_record_by_name(new_study: NewStudy, runner_of: RunnerOf) -> None:
    paths = new_study("study.equivalence_requests=0")
    runner = runner_of(paths)
    runner.run_place(Place(0, "baseline"))
    victim = paths.runs / "00-baseline-1" / "outputs.jsonl"
    victim.write_bytes(victim.read_bytes().replace(b'"text"', b'"texT"', 1))
    with pytest.raises(EvidenceError, match=r"00-baseline-1/outputs\.jsonl was changed"):
        runner.recover()


def test_registration_leaves_nothing_behind_when_refused(
    new_study: NewStudy, opened: Any, experiments: Path
) -> None:
    with pytest.raises(SetupError, match="absent"):
        new_study("engine.model=absent")
    with pytest.raises(InputError, match="different prompts"):
        new_study("workload.requests=100000")
    with pytest.raises(RefusedError):
        new_study(candidate=("engine.kv_cache.enabled=false",))
    assert list(opened.studies.iterdir() if opened.studies.is_dir() else []) == []


def test_the_plan_seals_workloads_and_predicts_the_price(new_study: NewStudy) -> None:
    paths = new_study("workload.concurrency=2")
    plan = canonical.read_json(paths.plan)
    by_block = [
        sealed.read(paths.workload(b), sha) for b, sha in enumerate(plan["workload"]["sha256_by_block"])
    ]
    prompts = [request.token_ids for block in by_block for request in block]
    assert len(set(prompts)) == len(prompts) == 6
    warmup = sealed.read(paths.workloads / "warmup.parquet", plan["workload"]["warmup_sha256"])
    assert not {request.token_ids for request in warmup} & set(prompts)
    eq = sealed.read(paths.workload(None), plan["workload"]["equivalence_sha256"])
    assert [request.token_ids for request in eq] == [by_block[0][0].token_ids, by_block[1][0].token_ids]
    rail = next(r for r in plan["guardrails"] if r["metric"] == "kv_bytes_peak")
    per_block = []
    for block in by_block:
        sizes = sorted(
            (-(-(len(r.token_ids) + r.max_new_tokens - 1) // 16) * 16 for r in block), reverse=True
        )
        per_block.append(sum(sizes[:2]))
    assert rail["registered"]["predicted_bytes"] == max(per_block) * 64
    assert plan["candidates_tried"] == 1
    second = canonical.read_json(new_study(name="t").plan)
    assert second["candidates_tried"] == 2


def test_every_start_of_an_experiment_counts_as_tried_without_reading_the_plans(
    new_study: NewStudy, monkeypatch: pytest.MonkeyPatch, opened: Store
) -> None:
    shutil.rmtree(new_study(name="deleted").folder)
    torn = opened.root / starts.NAME
    torn.write_bytes(torn.read_bytes() + b'{"experiment":"sh')
    assert [start.study for start in starts.entered(opened.root)] == ["deleted"]
    torn.write_bytes(torn.read_bytes().rpartition(b"\n")[0] + b"\n")
    old = new_study(name="older")
    # A store from before the chain: what it does not know is read.
    torn.unlink()
    assert canonical.read_json(new_study(name="next").plan)["candidates_tried"] == 2
    shutil.rmtree(old.folder)
    monkeypatch.setattr(register, "_experiment_of", lambda _folder: pytest.fail("a plan was read"))
    assert canonical.read_json(new_study(name="last").plan)["candidates_tried"] == 2


def test_a_study_that_was_stopped_early_stays_stopped(new_study: NewStudy, runner_of: RunnerOf) -> None:
    paths = new_study("study.equivalence_requests=0")
    runner = runner_of(paths)
    asked: list[int] = []

    def stop(block: int) -> bool:
        asked.append(block)
        return True

    runner.run_missing(stop)
    assert asked == [0]
    assert kinds(paths)[-1] == "stopped_early"
    assert {place.block for place in runner.missing()} == {1}
    runner.run_missing()
    assert {place.block for place in runner.missing()} == {1}
    verify_study(paths.folder)


def test_a_registration_that_was_cut_off_is_no_study(new_study: NewStudy, opened: Any) -> None:
    paths = new_study()
    paths.folder.rename(opened.studies / ".new-s-123")
    assert opened.study_folders() == []
    assert new_study().plan.is_file()


def test_an_interruption_just_after_the_seal_loses_nothing(
    new_study: NewStudy, runner_of: RunnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = new_study("study.equivalence_requests=0")
    write = assemble.write_record

    def write_and_be_interrupted(*arguments: Any) -> str:
        write(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(assemble, "write_record", write_and_be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner_of(paths).run_place(Place(0, "baseline"))
    assert manifest.is_sealed(paths.runs / "00-baseline-1")
    assert kinds(paths)[-1] == "run_started"
    assert runner_of(paths).recover() == []
    assert kinds(paths)[-1] == "run_sealed"
    assert [run.folder.name for run in verify_study(paths.folder).runs] == ["00-baseline-1"]


def test_a_process_that_would_import_other_code_measures_nothing(
    new_study: NewStudy, runner_of: RunnerOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = new_study("study.equivalence_requests=0")
    here = code_identity.origins()
    elsewhere = {**here, "intaglio": str(tmp_path / "intaglio")}
    monkeypatch.setattr(code_identity, "origins", lambda: elsewhere)
    with pytest.raises(SetupError, match="would import other code") as caught:
        runner_of(paths).run_place(Place(0, "baseline"))
    assert f"intaglio: {here['intaglio']}, not {tmp_path / 'intaglio'}" in caught.value.details
    assert kinds(paths)[-1] == "run_failed"


def test_of_two_harnesses_that_register_one_name_the_slower_is_refused(
    new_study: NewStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_study()
    # As if the other harness had finished between the first look and the end of the registration.
    real = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path.name != "s" and real(path))
    with pytest.raises(InputError, match="there is a study 's' already"):
        new_study()
    assert [path.name for path in open_store().studies.iterdir()] == ["s"]
