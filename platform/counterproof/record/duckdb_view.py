"""The DuckDB view: every table of every study in one file, replaced as a whole so that readers see a snapshot."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb

from counterproof.record import atomic, canonical
from counterproof.record.schema import TABLES
from counterproof.record.verify import VerifiedStudy

_TABLES = """
create table if not exists studies (
  study varchar, experiment varchar, created_utc varchar, exploratory boolean, calibration boolean,
  plan_sha256 varchar, code_sha varchar, factor varchar, baseline_value varchar, candidate_value varchar,
  blocks integer, sealed_runs integer, valid boolean, decision varchar, because varchar);
create table if not exists runs (
  study varchar, run varchar, block integer, arm varchar, attempt integer, phase varchar, env_id varchar,
  workload_sha256 varchar, manifest_sha256 varchar, startup_ms double, counters varchar);
create table if not exists attempts (study varchar, run varchar, kind varchar, time_utc varchar, reason varchar);
create table if not exists metrics (
  study varchar, metric varchar, statistic varchar, unit varchar, arm varchar, block integer, value double,
  reason varchar);
create table if not exists effects (
  study varchar, metric varchar, statistic varchar, arm varchar, ratio double, ci_low double, ci_high double,
  noise_floor double, mde double, verdict varchar);
create table if not exists guardrails (
  study varchar, metric varchar, statistic varchar, kind varchar, margin double, ratio double, ci_low double,
  ci_high double, status varchar, reason varchar);
"""
_PLAIN = ("studies", "runs", "attempts", "metrics", "effects", "guardrails")
_LOST = ("run_lost", "run_failed", "run_refused")


def update(path: Path, study: VerifiedStudy) -> None:
    """Put one study's current content into the file, in place of what it held of it. Readers keep theirs."""
    draft = _draft(path)
    if path.is_file():
        shutil.copyfile(path, draft)
    else:
        draft.unlink(missing_ok=True)
    _write(draft, [study])
    os.replace(draft, path)
    atomic.sync_folder(path.parent)


def rebuild(path: Path, studies: Iterable[VerifiedStudy]) -> None:
    """Make the file anew from these studies alone."""
    draft = _draft(path)
    draft.unlink(missing_ok=True)
    _write(draft, studies)
    os.replace(draft, path)
    atomic.sync_folder(path.parent)


def content_digest(path: Path) -> dict[str, str]:
    """sha256 over the sorted rows of each table: equal content, equal digests, however it came about."""
    result = {}
    with duckdb.connect(str(path), read_only=True) as connection:
        for (name,) in connection.execute("select table_name from information_schema.tables").fetchall():
            rows = connection.execute(f'select * from "{name}" order by all').fetchall()
            result[name] = canonical.sha256_json([list(row) for row in rows])
    return dict(sorted(result.items()))


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _write(path: Path, studies: Iterable[VerifiedStudy]) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(_TABLES)
        for name, columns in _parquet_columns().items():
            connection.execute(f"create table if not exists {name} ({columns})")
        for study in studies:
            connection.begin()
            for name in (*_PLAIN, *_parquet_columns()):
                connection.execute(f"delete from {name} where study = ?", [study.paths.name])
            _insert_study(connection, study)
            connection.commit()


def _parquet_columns() -> dict[str, str]:
    types = {"int32": "integer", "int64": "bigint", "string": "varchar", "double": "double"}
    result = {}
    for file, schema in TABLES.items():
        columns = ", ".join(f"{field.name} {types[str(field.type)]}" for field in schema)
        result[file.removesuffix(".parquet")] = f"study varchar, run varchar, {columns}"
    return result


def _insert_study(connection: duckdb.DuckDBPyConnection, study: VerifiedStudy) -> None:
    plan, name = study.plan, study.paths.name
    comparison = _optional(study.paths.comparison)
    decision = _optional(study.paths.decision)
    factor = plan["factor"] or {}
    _insert(
        connection,
        "studies",
        [
            [
                name,
                plan["experiment"],
                plan["created_utc"],
                plan["exploratory"],
                plan["calibration"],
                study.plan_sha256,
                plan["code"]["sha"],
                factor.get("path"),
                _text(factor.get("baseline")),
                _text(factor.get("candidate")),
                plan["blocks"],
                len(study.runs),
                comparison.get("valid"),
                decision.get("decision"),
                decision.get("because"),
            ]
        ],
    )
    _insert(connection, "runs", _runs(study))
    lost = [e for e in study.journal if e["kind"] in _LOST]
    _insert(
        connection, "attempts", [[name, e["run"], e["kind"], e["time_utc"], e.get("reason")] for e in lost]
    )
    _insert(connection, "metrics", _metrics(name, comparison))
    _insert(connection, "effects", _effects(name, comparison))
    _insert(connection, "guardrails", _guardrails(name, decision))
    for run in study.runs:
        for file in TABLES:
            table, columns = file.removesuffix(".parquet"), ", ".join(TABLES[file].names)
            connection.execute(
                f"insert into {table} select ?, ?, {columns} from read_parquet(?)",
                [name, run.folder.name, str(run.folder / file)],
            )


def _runs(study: VerifiedStudy) -> list[list[Any]]:
    rows = []
    for run in study.runs:
        fields = ("block", "arm", "attempt", "phase", "env_id", "workload_sha256")
        counters = canonical.dumps(run.manifest["counters"]).decode()
        values = [run.manifest[field] for field in fields]
        ending = [run.manifest_sha256, run.manifest["startup_ms"], counters]
        rows.append([study.paths.name, run.folder.name, *values, *ending])
    return rows


def _metrics(study: str, comparison: dict[str, Any]) -> list[list[Any]]:
    rows = []
    for entry in comparison.get("metrics", {}).values():
        for arm, values in entry["arms"].items():
            for block, value in zip(comparison["blocks"], values["per_block"], strict=True):
                head = [study, entry["metric"], entry["statistic"], entry["unit"], arm, block]
                rows.append([*head, value, values.get("reason") if value is None else None])
    return rows


def _effects(study: str, comparison: dict[str, Any]) -> list[list[Any]]:
    rows = []
    for entry in comparison.get("metrics", {}).values():
        for arm, effect in entry["effects"].items():
            numbers = [effect.get(field) for field in ("ratio", "ci_low", "ci_high")]
            ending = [entry["noise_floor"], entry["mde"], entry["verdict"]]
            rows.append([study, entry["metric"], entry["statistic"], arm, *numbers, *ending])
    return rows


def _guardrails(study: str, decision: dict[str, Any]) -> list[list[Any]]:
    fields = ("metric", "statistic", "kind", "margin", "ratio", "ci_low", "ci_high", "status", "reason")
    return [[study, *(rail.get(field) for field in fields)] for rail in decision.get("guardrails", [])]


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: list[list[Any]]) -> None:
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"insert into {table} values ({marks})", rows)


def _optional(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = canonical.read_json(path) if path.is_file() else {}
    return content


def _text(value: Any) -> str | None:
    return None if value is None else canonical.dumps(value).decode()
