"""A complete sealed study in the store's layout, written without an engine, for tests of everything downstream.

`build(store, StudyModel(...))` writes `store/studies/<study>/` and returns that folder. The same model gives
the same numbers; what a test wants to be wrong (a missing run, a truncated output, a flag without effect) is
a field of the model.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from counterproof.record import atomic, canonical, manifest
from counterproof.record.journal import Journal
from counterproof.record.schema import ARMS, TABLES
from counterproof.record.store import RunKey

FACTOR = "engine.kv_cache.enabled"
TIME = "2026-01-02T03:04:05Z"


def _sibling(name: str) -> ModuleType:
    """Load a module beside this file by path, so that tests need no package and no change of sys.path."""
    key = f"counterproof_tests_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, Path(__file__).with_name(f"{name}.py"))
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
    return sys.modules[key]


runs = _sibling("synthetic_runs")

DEFAULT_GUARDRAILS: tuple[dict[str, Any], ...] = (
    {"metric": "outputs", "statistic": "identical", "kind": "exact", "margin": 0.0, "better": "equal"},
    {"metric": "error_rate", "statistic": "mean", "kind": "exact", "margin": 0.001, "better": "lower"},
    {
        "metric": "kv_bytes_peak",
        "statistic": "peak",
        "kind": "exact",
        "margin": 0.02,
        "better": "lower",
        "registered": {
            "predicted_bytes": 256 * 16 * 23_040,
            "reason": "the cache's own bytes, headroom 2 GiB",
        },
    },
    {"metric": "throughput_tok_s", "statistic": "total", "kind": "rate", "margin": 0.03, "better": "higher"},
    {"metric": "ttft_ms", "statistic": "p50", "kind": "sampled", "margin": 0.03, "better": "lower"},
    {"metric": "startup_ms", "statistic": "total", "kind": "sampled", "margin": 0.2, "better": "lower"},
)


@dataclass(frozen=True)
class StudyModel:
    """A study. `decode_ratio`/`prefill_ratio`: the candidate's true compute time over the baseline's."""

    study: str = "20260102-030405-kv_cache"
    experiment: str = "kv_cache"
    seed: int = 7
    blocks: int = 6
    requests: int = 12
    concurrency: int = 1
    prompt_tokens: int = 48
    new_tokens: int = 24
    decode_ratio: float = 0.5
    prefill_ratio: float = 1.0
    again_ratio: float = 1.0
    run_sd: float = 0.01
    step_sd: float = 0.02
    slowed_delay_us: int = 5_000
    delivered_delay_us: int | None = None  # what the slowed arm really got (default: what was planned)
    identical_arms: bool = False  # the candidate's flag did nothing: same effective config, same work
    candidate_failures: int = 0
    all_fail: bool = False
    kept_tokens: float = 1.0  # fraction of the candidate's output that it emits
    wrong_requests: int = 0  # candidate requests per run with one other token
    wrong_margin: float = 4.0  # the baseline's top-1 margin there
    hidden_queue_ms: float = 0.0  # client-side wait of every arm
    gauge_factor: float = 1.0  # engine gauge over the truth
    cached_tokens: int = 0  # prompt tokens of every candidate request that a cache answered
    client_late_us: int | None = None  # every run's client sent its requests so late
    nan_arm: str = ""  # this arm reports no token times
    missing: tuple[tuple[int, str], ...] = ()  # (block, arm) never run
    killed: tuple[tuple[int, str], ...] = ()  # first attempt lost (unsealed folder), second sealed
    crashed: tuple[tuple[int, str], ...] = ()  # (block, arm) that failed in every attempt
    crash_reason: str = "its process died"
    extra_effective: dict[str, Any] = field(default_factory=dict)  # undeclared effective change of candidate
    environment_change: dict[str, Any] = field(default_factory=dict)  # candidate's environment id fields
    equivalence: bool = True
    equivalence_differs: bool = False
    batch_logit_difference: float = 0.05
    lossless: bool = True
    calibration: bool = False
    exploratory: bool = False
    prompt_text: str = "Tell me about the loop statement."
    guardrails: tuple[dict[str, Any], ...] = DEFAULT_GUARDRAILS
    primary: dict[str, Any] = field(
        default_factory=lambda: {"metric": "tpot_ms", "statistic": "p50", "better": "lower", "sesoi": 0.05}
    )

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(a for a in ARMS if not (self.calibration and a == "candidate"))


def build(store: Path, model: StudyModel | None = None) -> Path:
    """Write the study's folder with plan, journal and sealed runs. No comparison, no decision yet.

    Nothing is flushed to the disk: a synthetic study need not survive a power cut, and tests write many.
    """
    with mock.patch("os.fsync"):
        return _build(store, model or StudyModel())


def _build(store: Path, model: StudyModel) -> Path:
    folder = store / "studies" / model.study
    (folder / "runs").mkdir(parents=True)
    plan = plan_of(model)
    plan_sha = atomic.write_json(folder / "plan.json", plan)
    journal = Journal(folder / "journal.jsonl")
    journal.append("study_started", study=model.study, plan_sha256=plan_sha)
    if model.equivalence and not model.calibration:
        for arm in ("baseline", "candidate"):
            _write_run(folder, model, plan_sha, journal, RunKey(None, arm, 1))
    for block, order in enumerate(plan["schedule"]):
        for arm in order:
            if (block, arm) not in model.missing:
                _write_run(folder, model, plan_sha, journal, RunKey(block, arm, 1))
    return folder


def plan_of(model: StudyModel) -> dict[str, Any]:
    """The preregistration of the synthetic study."""
    configs = {arm: _config(model, arm) for arm in model.arms}
    factor = {
        "path": FACTOR,
        "baseline": False,
        "candidate": True,
        "lossless": model.lossless,
        "bottleneck": "recomputation of the prefix in every decode step",
        "moves": {
            "effective": ["kv_cache.blocks", "kv_cache.bytes_per_token"],
            "environment": [],
            "model": [],
        },
    }
    diff = [] if model.calibration else [{"path": FACTOR, "baseline": False, "candidate": True}]
    rng = np.random.default_rng([model.seed, 3])
    schedule = [[str(a) for a in rng.permutation(model.arms)] for _ in range(model.blocks)]
    for order in schedule[:1]:
        order.sort(key=lambda arm: arm != "baseline")
    return {
        "schema": "counterproof-plan/1",
        "study": model.study,
        "experiment": model.experiment,
        "created_utc": TIME,
        "exploratory": model.exploratory,
        "calibration": model.calibration,
        "factor": factor,
        "arms": {arm: {"overrides": _overrides(model, arm), "config": configs[arm]} for arm in model.arms},
        "diff": diff,
        "primary": model.primary,
        "guardrails": list(model.guardrails),
        "blocks": model.blocks,
        "schedule": schedule,
        "seed": model.seed,
        "workload": {
            "name": "python_topics",
            "requests": model.requests,
            "concurrency": model.concurrency,
            "equivalence_sha256": _workload_sha(model, None),
            "sha256_by_block": [_workload_sha(model, b) for b in range(model.blocks)],
        },
        "slowed_delay_us": model.slowed_delay_us,
        "aa_band": 0.05,
        "candidates_tried": 1,
        "code": {"sha": "0" * 40, "dirty": False},
        "rule": "counterproof-rule/1",
    }


def _config(model: StudyModel, arm: str) -> dict[str, Any]:
    return {
        "engine.model": "synthetic",
        "engine.dtype": "bf16",
        "engine.kv_cache.enabled": arm == "candidate",
        "engine.kv_cache.block_tokens": runs.BLOCK_TOKENS,
        "engine.numerics.mode": "fast",
        "engine.inject.step_delay_us": model.slowed_delay_us if arm == "slowed" else 0,
        "workload.requests": model.requests,
    }


def _overrides(model: StudyModel, arm: str) -> list[str]:
    if arm == "candidate":
        return [f"{FACTOR}=true"]
    return [f"engine.inject.step_delay_us={model.slowed_delay_us}"] if arm == "slowed" else []


def effective_of(model: StudyModel, arm: str, phase: str = "timed") -> dict[str, Any]:
    """What the imagined engine says it really runs."""
    flat = {k.removeprefix("engine."): v for k, v in _config(model, arm).items() if k.startswith("engine.")}
    cached = arm == "candidate" and not model.identical_arms
    flat["kv_cache.enabled"] = cached
    flat["kv_cache.blocks"] = 256 if cached else 0
    flat["kv_cache.bytes_per_token"] = runs.KV_BYTES_PER_TOKEN if cached else 0
    flat["kernel_path"] = "torch_sdpa"
    flat["model.weight_bytes"] = runs.WEIGHT_BYTES
    flat["scheduler.max_model_len"] = 8192
    if phase == "equivalence":
        flat["numerics.mode"] = "invariant"
    if arm == "candidate":
        flat.update(model.extra_effective)
    return flat


def run_model(model: StudyModel, block: int | None, arm: str) -> Any:
    """The RunModel of one run; every arm of a block shares the workload, every run has its own noise."""
    cached = arm == "candidate" and not model.identical_arms
    delivered = model.slowed_delay_us if model.delivered_delay_us is None else model.delivered_delay_us
    speed = model.again_ratio if arm == "again" else 1.0
    number = -1 if block is None else block
    everything = model.requests if model.all_fail else 0
    return runs.RunModel(
        arm=arm,
        seed=model.seed * 100_000 + (number + 1) * 100 + ARMS.index(arm),
        workload_seed=model.seed * 1_000 + number + 1,
        requests=4 if block is None else model.requests,
        concurrency=model.concurrency,
        prompt_tokens=model.prompt_tokens,
        new_tokens=model.new_tokens,
        decode_speed=speed * (model.decode_ratio if cached else 1.0),
        prefill_speed=speed * (model.prefill_ratio if cached else 1.0),
        run_sd=model.run_sd,
        step_sd=model.step_sd,
        delay_us=delivered if arm == "slowed" else 0,
        kv_cache=cached,
        failures=max(everything, model.candidate_failures if arm == "candidate" else 0),
        kept_tokens=model.kept_tokens if arm == "candidate" else 1.0,
        marked_requests=0 if block is None else model.wrong_requests,
        marked_margin=model.wrong_margin,
        marked_differ=arm == "candidate",
        hidden_queue_ms=model.hidden_queue_ms,
        gauge_factor=model.gauge_factor,
        nan_times=arm == model.nan_arm,
        cached_tokens=model.cached_tokens if arm == "candidate" else 0,
        client_late_us=model.client_late_us,
    )


def _write_run(folder: Path, model: StudyModel, plan_sha: str, journal: Journal, key: RunKey) -> None:
    run = folder / "runs" / key.name
    run.mkdir()
    journal.append("run_started", run=key.name)
    if (key.block, key.arm) in model.crashed:
        (run / "log.txt").write_text("failed\n", encoding="utf-8")
        journal.append("run_failed", run=key.name, reason=model.crash_reason, details=[])
        if key.attempt < 3:
            _write_run(folder, model, plan_sha, journal, RunKey(key.block, key.arm, key.attempt + 1))
        return
    if key.attempt == 1 and (key.block, key.arm) in model.killed:
        (run / "log.txt").write_text("killed\n", encoding="utf-8")
        journal.append("run_lost", run=key.name, reason="killed")
        _write_run(folder, model, plan_sha, journal, RunKey(key.block, key.arm, 2))
        return
    tables = runs.simulate(run_model(model, key.block, key.arm))
    environment = _environment(model, key.arm)
    _write_files(run, model, key, tables, environment)
    facts = {
        "study": model.study,
        "block": key.block,
        "arm": key.arm,
        "attempt": key.attempt,
        "phase": key.phase,
        "plan_sha256": plan_sha,
        "env_id": environment["env_id"],
        "workload_sha256": _workload_sha(model, key.block),
        "counters": tables.counters,
        "startup_ms": 900.0 + (hash_int(key.name) % 100) / 10,
    }
    journal.append("run_sealed", run=key.name, manifest_sha256=manifest.seal(run, facts))


def _write_files(run: Path, model: StudyModel, key: RunKey, tables: Any, environment: dict[str, Any]) -> None:
    arm = key.arm
    for name, schema in TABLES.items():
        rows = getattr(tables, name.removesuffix(".parquet"))
        if key.block is None and name in ("stages.parquet", "resources.parquet"):
            rows = []  # nothing of the equivalence phase is timed
        full = [{column: row.get(column) for column in schema.names} for row in rows]
        pq.write_table(pa.Table.from_pylist(full, schema=schema), run / name, compression="zstd")
    prompts = {row["request_index"]: model.prompt_text for row in tables.outputs}
    outputs = [{**row, "prompt": prompts[row["request_index"]]} for row in tables.outputs]
    _write_lines(run / "outputs.jsonl", outputs)
    events = list(tables.events)
    if key.block is None:
        events += _equivalence_events(model, arm, tables)
    _write_lines(run / "events.jsonl", events)
    (run / "log.txt").write_text(f"{key.phase} run of a synthetic engine\n", encoding="utf-8")
    atomic.write_json(run / "environment.json", environment)
    config = run / "config"
    config.mkdir()
    resolved = _config(model, arm)
    for name, value in (
        ("overrides", _overrides(model, arm)),
        ("composed", resolved),
        ("resolved", resolved),
        ("effective", effective_of(model, arm, key.phase)),
    ):
        (config / f"{name}.yaml").write_text(yaml.safe_dump(value, sort_keys=True), encoding="utf-8")


def _equivalence_events(model: StudyModel, arm: str, tables: Any) -> list[dict[str, Any]]:
    """Logits by hash for each request, and for the baseline the difference between batch compositions."""
    differs = model.equivalence_differs and arm == "candidate"
    events = [
        {
            "time_ns": 1,
            "kind": "equivalence_logits",
            "request_index": row["request_index"],
            "tokens": row["output_tokens"],
            "logit_rows": row["output_tokens"],
            "tokens_sha256": row["output_sha256"],
            "logits_sha256": _sha256(f"{row['output_sha256']}{differs}".encode()),
        }
        for row in tables.requests
    ]
    if arm == "baseline":
        value = model.batch_logit_difference
        events.append({"time_ns": 2, "kind": "batch_logit_difference", "max_abs": value, "mode": "fast"})
    return events


def _environment(model: StudyModel, arm: str) -> dict[str, Any]:
    ids: dict[str, Any] = {
        "code_sha": "0" * 40,
        "python": "3.11.0",
        "cpu_model": "Synthetic CPU",
        "threads": 2,
        "torch": "2.13.0",
        "model_sha256": "1" * 64,
        "kernel_path": "torch_sdpa",
    }
    if arm == "candidate":
        ids.update(model.environment_change)
    return {"env_id": canonical.sha256_json(ids), "id": ids, "observed": {"load1": 1.1, "cpu_mhz": 3700.0}}


def _workload_sha(model: StudyModel, block: int | None) -> str:
    return _sha256(f"workload {model.seed} {block} {model.requests}".encode())


def hash_int(text: str) -> int:
    """A number from a name, the same in every process."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, sort_keys=True, allow_nan=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
