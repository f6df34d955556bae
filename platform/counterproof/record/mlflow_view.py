"""The MLflow view: an experiment per experiment, a parent run per study, a child run per record.

Explicit run ids through MlflowClient (the fluent active run is thread-local and can be hijacked by a variable),
an absolute database address and artifact location, no telemetry, no silent truncation, no number that is not
finite (a reason is tagged instead), our own dataset digest (MLflow's covers neither long nor list columns).
Everything is derived from the folders, so that the view can be thrown away and made again.
"""

from __future__ import annotations

import datetime
import logging
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.record import canonical, mlflow_database
from counterproof.record.mlflow_text import PARAM_LIMIT, TAG_LIMIT, fitted
from counterproof.record.store import RunKey, Store
from counterproof.record.verify import SealedRun, VerifiedStudy

VARIABLE = "MLFLOW_TRACKING_URI"
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_TRUNCATE_LONG_VALUES": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
_LOCAL = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
_RUN_FILES = ("requests.parquet", "tokens.parquet", "environment.json", "manifest.json")
_STUDY_FILES = ("plan.json", "comparison.json", "decision.json", "report.html", "report.md")
_BATCH = 100


@dataclass(frozen=True)
class Tracker:
    """A tracking server or database. `artifacts` None: the server decides where they go."""

    uri: str
    artifacts: Path | None

    @staticmethod
    def open(store: Store) -> Tracker:
        """`$MLFLOW_TRACKING_URI`, else the store's own database. Nothing is contacted yet."""
        if given := os.environ.get(VARIABLE):
            return Tracker(given, None)
        return Tracker(f"sqlite:///{store.mlflow_db}", store.artifacts)

    def client(self) -> Any:
        """A client for exactly this address. The first one on a new database of the store creates its tables."""
        os.environ.update(_ENVIRONMENT)
        for name, value in _LOCAL.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        # Importing MLflow sets its levels anew; creating the tables is told line by line otherwise.
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        if self.artifacts is not None:
            mlflow_database.ensure(Path(self.uri.removeprefix("sqlite:///")))
        return MlflowClient(tracking_uri=self.uri)


def ingest(tracker: Tracker, study: VerifiedStudy) -> bool:
    """Bring a study's runs up to date. Returns False when they already were. What an interrupted or older
    ingestion left of this study is deleted first, so that no metric is logged twice."""
    client = tracker.client()
    experiment = _experiment(client, tracker, study.plan["experiment"])
    state = state_of(study)
    old = search(client, [experiment], f"tags.`counterproof.study` = '{study.paths.name}'")
    parents = [run for run in old if run.data.tags.get("counterproof.level") == "study"]
    if len(parents) == 1 and parents[0].data.tags.get("counterproof.state") == state:
        return False
    for run in old:
        client.delete_run(run.info.run_id)
    parent = _log_study(client, experiment, study)
    for run in study.runs:
        _log_run(client, experiment, study, run, parent)
    for event in study.journal:
        if event["kind"] in ("run_lost", "run_failed", "run_refused"):
            _log_lost(client, experiment, study, event, parent)
    # Written last: a parent without its state was not finished.
    client.set_tag(parent, "counterproof.state", state)
    return True


def content_digest(tracker: Tracker) -> str:
    """sha256 over everything the view says, without the ids that MLflow draws."""
    client = tracker.client()
    content = []
    for experiment in client.search_experiments():
        for run in search(client, [experiment.experiment_id]):
            tags = {k: v for k, v in run.data.tags.items() if k != "mlflow.parentRunId"}
            inputs = [f"{i.dataset.name} {i.dataset.digest}" for i in run.inputs.dataset_inputs]
            artifacts = sorted(item.path for item in client.list_artifacts(run.info.run_id))
            content.append(
                {
                    "experiment": experiment.name,
                    "name": run.info.run_name,
                    "status": run.info.status,
                    "times": [run.info.start_time, run.info.end_time],
                    "tags": tags,
                    "params": dict(run.data.params),
                    "metrics": dict(run.data.metrics),
                    "inputs": inputs,
                    "artifacts": artifacts,
                }
            )
    return canonical.sha256_json(sorted(content, key=lambda entry: str(canonical.dumps(entry))))


def _experiment(client: Any, tracker: Tracker, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    location = None if tracker.artifacts is None else (tracker.artifacts / name).as_uri()
    return str(client.create_experiment(name, artifact_location=location))


def search(client: Any, experiments: list[str], where: str = "") -> list[Any]:
    """Every run that is there and fits, page by page."""
    runs: list[Any] = []
    token = None
    while True:
        page = client.search_runs(experiments, where, max_results=500, page_token=token)
        runs += page
        token = page.token
        if not token:
            return runs


def state_of(study: VerifiedStudy) -> str:
    """What the study's runs in the view depend on."""
    outcome = [path for path in (study.paths.comparison, study.paths.decision) if path.is_file()]
    return canonical.sha256_json(
        {
            "plan": study.plan_sha256,
            "runs": [run.manifest_sha256 for run in study.runs],
            "outcome": [canonical.sha256_file(path) for path in outcome],
            "lost": [
                e["run"] for e in study.journal if e["kind"] in ("run_lost", "run_failed", "run_refused")
            ],
        }
    )


def _log_study(client: Any, experiment: str, study: VerifiedStudy) -> str:
    plan = study.plan
    comparison, decision = (_optional(path) for path in (study.paths.comparison, study.paths.decision))
    factor = plan["factor"] or {}
    tags = {
        "counterproof.level": "study",
        "counterproof.study": study.paths.name,
        "counterproof.plan_sha256": study.plan_sha256,
        "counterproof.exploratory": plan["exploratory"],
        "counterproof.calibration": plan["calibration"],
        "counterproof.changed_key": factor.get("path"),
        "counterproof.valid": comparison.get("valid"),
        "counterproof.decision": decision.get("decision"),
        "code.sha": plan["code"]["sha"],
        "code.dirty": plan["code"]["dirty"],
        "code.diff_sha256": plan["code"].get("dirty_sha256"),
    }
    times = [_milliseconds(event["time_utc"]) for event in (study.journal[0], study.journal[-1])]
    ended = [_milliseconds(e["time_utc"]) for e in study.journal if e["kind"] in ("run_sealed", "decided")]
    run_id = _create(client, experiment, study.paths.name, times[0], tags)
    values: dict[str, float | None] = {}
    for key, entry in comparison.get("metrics", {}).items():
        values[f"noise_floor/{key}"] = entry["noise_floor"]
        for arm, effect in entry["effects"].items():
            values |= {f"{arm}/{key}/{name}": effect.get(name) for name in ("ratio", "ci_low", "ci_high")}
    values = {name: value for name, value in values.items() if _preregistered(name, comparison)}
    _log_values(client, run_id, values, {}, times[0])
    _log_files(client, run_id, [study.paths.folder / name for name in _STUDY_FILES])
    client.set_terminated(run_id, "FINISHED", end_time=max(ended, default=times[1]))
    return run_id


def _preregistered(name: str, comparison: Mapping[str, Any]) -> bool:
    return bool(comparison["metrics"][name.split("/")[1]].get("preregistered"))


def _log_run(client: Any, experiment: str, study: VerifiedStudy, run: SealedRun, parent: str) -> None:
    manifest, name = run.manifest, run.folder.name
    tags = {
        "mlflow.parentRunId": parent,
        "counterproof.level": "run",
        "counterproof.study": study.paths.name,
        "counterproof.kind": manifest["arm"],
        "counterproof.block": manifest["block"],
        "counterproof.attempt": manifest["attempt"],
        "counterproof.phase": manifest["phase"],
        "counterproof.plan_sha256": study.plan_sha256,
        "counterproof.manifest_sha256": run.manifest_sha256,
        "env_id": manifest["env_id"],
        "workload_sha256": manifest["workload_sha256"],
    }
    start, end = _run_times(study, name)
    config = arm_config(study.plan, manifest["arm"])
    # Whoever reads the parameters back can tell that they are all there and whole.
    tags["counterproof.config_sha256"] = canonical.sha256_json(config)
    run_id = _create(client, experiment, f"{study.paths.name}/{name}", start, tags)
    _log_params(client, run_id, {key: _text(value) for key, value in config.items()})
    values, reasons = _run_values(study, run.key)
    values["startup_ms"] = manifest["startup_ms"]
    _log_values(client, run_id, values, reasons, start)
    _log_dataset(client, run_id, study.plan["workload"]["name"], manifest["workload_sha256"])
    _log_files(client, run_id, [run.folder / file for file in _RUN_FILES])
    client.set_terminated(run_id, "FINISHED", end_time=end)


def arm_config(plan: Mapping[str, Any], arm: str) -> dict[str, Any]:
    """The resolved configuration of an arm; the sabotaged one stands with the probes, the only runs that it has."""
    entry = plan["arms"].get(arm) or plan["probes"][arm]
    return dict(entry["config"])


def _log_lost(
    client: Any, experiment: str, study: VerifiedStudy, event: Mapping[str, Any], parent: str
) -> None:
    key = RunKey.parse(event["run"])
    tags = {
        "mlflow.parentRunId": parent,
        "counterproof.level": "run",
        "counterproof.study": study.paths.name,
        "counterproof.kind": key.arm,
        "counterproof.block": key.block,
        "counterproof.attempt": key.attempt,
        "counterproof.phase": key.phase,
        "counterproof.lost": event["kind"],
        "counterproof.reason": event.get("reason"),
    }
    start, _ = _run_times(study, event["run"])
    run_id = _create(client, experiment, f"{study.paths.name}/{event['run']}", start, tags)
    status = "KILLED" if event["kind"] == "run_lost" else "FAILED"
    client.set_terminated(run_id, status, end_time=_milliseconds(event["time_utc"]))


def _run_values(study: VerifiedStudy, key: RunKey) -> tuple[dict[str, float | None], dict[str, str]]:
    """A run's scalars as the comparison has them, and the reason for each that is not there."""
    comparison = _optional(study.paths.comparison)
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    if key.block is None or key.block not in comparison.get("blocks", []):
        return values, reasons
    place = comparison["blocks"].index(key.block)
    for entry in comparison["metrics"].values():
        name = f"{entry['metric']}/{entry['statistic']}"
        arm = entry["arms"][key.arm]
        values[name] = arm["per_block"][place]
        if values[name] is None:
            reasons[name] = arm["reason"]
    return values, reasons


def _create(client: Any, experiment: str, name: str, start: int, tags: Mapping[str, Any]) -> str:
    texts = {key: fitted(_text(value), TAG_LIMIT) for key, value in tags.items() if value is not None}
    run = client.create_run(experiment, start_time=start, tags=texts, run_name=name)
    return str(run.info.run_id)


def _log_params(client: Any, run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    items = [Param(key, fitted(value, PARAM_LIMIT)) for key, value in sorted(params.items())]
    for begin in range(0, len(items), _BATCH):
        client.log_batch(run_id, params=items[begin : begin + _BATCH])


def _log_values(
    client: Any, run_id: str, values: Mapping[str, float | None], reasons: Mapping[str, str], time_ms: int
) -> None:
    """Finite numbers as metrics; for anything else a tag says why there is none."""
    from mlflow.entities import Metric, RunTag

    metrics, tags = [], []
    for name, value in sorted(values.items()):
        if value is not None and math.isfinite(value):
            metrics.append(Metric(name, float(value), time_ms, 0))
        else:
            reason = reasons.get(name) or "not measured"
            tags.append(RunTag(f"not_measured.{name}", fitted(reason, TAG_LIMIT)))
    for begin in range(0, len(metrics), _BATCH):
        client.log_batch(run_id, metrics=metrics[begin : begin + _BATCH])
    for begin in range(0, len(tags), _BATCH):
        client.log_batch(run_id, tags=tags[begin : begin + _BATCH])


def _log_dataset(client: Any, run_id: str, name: str, sha256: str) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(name=name, digest=sha256[:36], source_type="local", source="{}")
    client.log_inputs(run_id, datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", "workload")])])


def _log_files(client: Any, run_id: str, paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_file():
            client.log_artifact(run_id, str(path))


def _run_times(study: VerifiedStudy, name: str) -> tuple[int, int]:
    times = [_milliseconds(e["time_utc"]) for e in study.journal if e.get("run") == name]
    return times[0], times[-1]


def _milliseconds(time_utc: str) -> int:
    moment = datetime.datetime.fromisoformat(time_utc)
    return round(moment.timestamp() * 1000)


def _optional(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = canonical.read_json(path) if path.is_file() else {}
    return content


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical.dumps(value).decode()
