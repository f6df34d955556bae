"""From a run's raw results to its sealed record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from counterproof.errors import ExecutionError
from counterproof.record import atomic, environment, manifest, tables
from counterproof.record.schema import SERVER_TABLES, TABLES
from counterproof.record.store import RunKey
from counterproof.run.executor import SAMPLES
from counterproof.run.targets.http.watch import SERVER_SAMPLES
from counterproof.run.worker_main import RAW


@dataclass(frozen=True)
class RawRun:
    """What a run's process left. `result`: start-up time, counters, effective configuration, identity."""

    folder: Path
    result: dict[str, Any]

    @property
    def effective(self) -> dict[str, Any]:
        effective: dict[str, Any] = self.result["effective"]
        return effective

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Rows of one raw file; an unfinished last line (the sampler is stopped from outside) is left out."""
        watched = {"samples": SAMPLES, "server_samples": SERVER_SAMPLES}
        path = self.folder / watched[name] if name in watched else self.folder / RAW / f"{name}.jsonl"
        if not path.is_file():
            return []
        text = path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def read_raw(folder: Path) -> RawRun:
    """Raises ExecutionError when the process left no whole result."""
    try:
        result = json.loads((folder / RAW / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExecutionError(f"the run left no readable result: {error}") from None
    return RawRun(folder, result)


def build_environment(raw: RawRun, common: Mapping[str, Any], excepted: list[str]) -> dict[str, Any]:
    """The run's environment record, not yet written."""
    return environment.build(common, raw.result["identity"], raw.result["observed"], excepted)


def arm_of(plan: Mapping[str, Any], arm: str) -> dict[str, Any]:
    """An arm's overrides and configuration; the sabotaged one, which runs in the probes only, stands with them."""
    own: dict[str, Any] = plan["arms"][arm] if arm in plan["arms"] else plan["probes"][arm]
    return own


def write_record(
    raw: RawRun,
    key: RunKey,
    plan: Mapping[str, Any],
    plan_sha256: str,
    workload_sha256: str,
    env: Mapping[str, Any],
) -> str:
    """Write every file of the record, remove the raw ones and seal. Returns the manifest's sha256.

    Raises ExecutionError when the outside sampler saw nothing of a timed run.
    """
    folder = raw.folder
    _write_tables(raw, key)
    _write_lines(folder / "outputs.jsonl", raw.rows("outputs"))
    _write_lines(folder / "events.jsonl", raw.rows("events"))
    if key.probe:
        _write_lines(folder / "abnormal.jsonl", raw.rows("abnormal"))
    _write_config(folder / "config", key.arm, plan, raw.effective)
    atomic.write_json(folder / "environment.json", dict(env))
    shutil.rmtree(folder / RAW)
    for name in (SAMPLES, SERVER_SAMPLES):
        (folder / name).unlink(missing_ok=True)
    facts = {
        "study": plan["study"],
        "block": key.block,
        "arm": key.arm,
        "attempt": key.attempt,
        "phase": key.phase,
        "plan_sha256": plan_sha256,
        "env_id": env["env_id"],
        "workload_sha256": workload_sha256,
        "counters": raw.result["counters"],
        "warmup_counters": raw.result["warmup_counters"],
        "startup_ms": raw.result["startup_ms"],
        "stamps": raw.result.get("stamps", "token"),
    }
    return manifest.seal(folder, facts)


def _write_tables(raw: RawRun, key: RunKey) -> None:
    samples = raw.rows("samples")
    if (
        raw.result.get("stamps") == "chunk"
    ):  # the measured process is the client, the server has its own sampler
        samples = [{**row, "source": "client"} for row in samples]
        samples += raw.rows("server_samples")
    if key.block is not None and not samples:
        raise ExecutionError("the sampler saw nothing of the run; its memory would be unknown")
    resources = sorted([*samples, *raw.rows("gauges")], key=lambda row: row["time_ns"])
    content = {name: raw.rows(name.removesuffix(".parquet")) for name in TABLES}
    content["resources.parquet"] = resources
    if raw.result.get("stamps") == "chunk":
        content |= {name: raw.rows(name.removesuffix(".parquet")) for name in SERVER_TABLES}
    for name, rows in content.items():
        tables.write(raw.folder, name, rows)


def _write_config(folder: Path, arm: str, plan: Mapping[str, Any], effective: Mapping[str, Any]) -> None:
    folder.mkdir()
    own = arm_of(plan, arm)
    composed = own["composed"] if "composed" in own else plan["composed"][arm]
    (folder / "composed.yaml").write_text(composed, encoding="utf-8")
    for name, value in (
        ("overrides", list(own["overrides"])),
        ("resolved", dict(own["config"])),
        ("effective", dict(effective)),
    ):
        text = yaml.safe_dump(value, sort_keys=True, allow_unicode=True)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
