"""A verified study as rows of the DuckDB view's plain tables: everything but the Parquet files of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from counterproof.record import canonical
from counterproof.record.verify import VerifiedStudy

_LOST = ("run_lost", "run_failed", "run_refused")


def _schema(text: str) -> pa.Schema:
    kinds = {"text": pa.string(), "real": pa.float64(), "int": pa.int32(), "flag": pa.bool_()}
    pairs = (column.split(":") for column in text.split())
    return pa.schema([(name, kinds[kind]) for name, kind in pairs])


PLAIN: dict[str, pa.Schema] = {
    "studies": _schema(
        "study:text experiment:text created_utc:text exploratory:flag calibration:flag plan_sha256:text "
        "code_sha:text factor:text baseline_value:text candidate_value:text blocks:int sealed_runs:int valid:flag "
        "decision:text because:text"
    ),
    "runs": _schema(
        "study:text run:text block:int arm:text attempt:int phase:text env_id:text workload_sha256:text "
        "manifest_sha256:text startup_ms:real counters:text"
    ),
    "attempts": _schema("study:text run:text kind:text time_utc:text reason:text"),
    "metrics": _schema(
        "study:text metric:text statistic:text unit:text arm:text block:int value:real reason:text"
    ),
    "effects": _schema(
        "study:text metric:text statistic:text arm:text ratio:real ci_low:real ci_high:real noise_floor:real "
        "mde:real verdict:text"
    ),
    "guardrails": _schema(
        "study:text metric:text statistic:text kind:text margin:real ratio:real ci_low:real ci_high:real "
        "status:text reason:text"
    ),
}


def plain_rows(study: VerifiedStudy) -> dict[str, list[list[Any]]]:
    """The study's rows of each plain table, in the order of its columns."""
    comparison, decision = _optional(study.paths.comparison), _optional(study.paths.decision)
    name = study.paths.name
    lost = [event for event in study.journal if event["kind"] in _LOST]
    return {
        "studies": [_study(study, comparison, decision)],
        "runs": _runs(study),
        "attempts": [[name, e["run"], e["kind"], e["time_utc"], e.get("reason")] for e in lost],
        "metrics": _metrics(name, comparison),
        "effects": _effects(name, comparison),
        "guardrails": _guardrails(name, decision),
    }


def arrow(table: str, rows: list[list[Any]]) -> pa.Table:
    """Rows of a plain table as columns. Raises pa.ArrowInvalid for a value that does not fit."""
    schema = PLAIN[table]
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _study(study: VerifiedStudy, comparison: dict[str, Any], decision: dict[str, Any]) -> list[Any]:
    plan = study.plan
    factor = plan["factor"] or {}
    return [
        study.paths.name,
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


def _optional(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = canonical.read_json(path) if path.is_file() else {}
    return content


def _text(value: Any) -> str | None:
    return None if value is None else canonical.dumps(value).decode()
