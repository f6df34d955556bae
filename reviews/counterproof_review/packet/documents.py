"""The JSON documents of a packet: their schemas' names and the fields each must have.

A field that this version does not know is kept, reported as a warning and otherwise ignored; what a reader
must not ignore stands in PACKET.json under `critical`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import NoneType
from typing import Any

from counterproof_review.packet import layout
from counterproof_review.packet.errors import PacketError

_NUMBER = (int, float)

Fields = Mapping[str, type | tuple[type, ...]]

SCHEMAS: dict[str, str] = {
    layout.PACKET: layout.SCHEMA,
    layout.PREREG: "replication-prereg/1",
    layout.SCOPE: "replication-scope/1",
    layout.SCHEDULE: "replication-schedule/1",
    layout.RUN_LOCK: "replication-run/1",
    layout.ENVIRONMENT_LOCK: "replication-libraries/1",
    layout.CODE_LOCK: "replication-code/1",
    layout.MODELS_LOCK: "replication-models/1",
    layout.NOISE: "replication-noise/1",
    layout.ENVIRONMENT: "replication-environment/1",
    layout.LINEAGE: "replication-lineage/1",
    layout.RESULTS: "replication-results/1",
}
ARM_SCHEMA = "replication-arm/1"

FIELDS: dict[str, Fields] = {
    layout.PACKET: {
        "packet_id": str,
        "claim_id": str,
        "supersedes": (str, NoneType),
        "blinding_level": str,
        "blinding_note": str,
        "critical": list,
        "limits": dict,
        "arms": int,
        "blocks": int,
        "requests": list,
        "warmup_requests": int,
    },
    layout.PREREG: {
        "plan_sha256": str,
        "unit": str,
        "blocks": int,
        "min_blocks": int,
        "primary": dict,
        "guardrails": list,
        "consistency_band": float,
        "exclusions": str,
        "decision_rule": str,
        "exploratory": bool,
    },
    layout.SCOPE: {
        "model": str,
        "device": str,
        "dtype": str,
        "hardware": str,
        "prompt_tokens": list,
        "output_tokens": list,
        "concurrency": int,
    },
    layout.SCHEDULE: {"blocks": int, "rule": str, "how": str},
    layout.RUN_LOCK: {"executor": str, "target": str, "workload": dict, "run_deadline_s": _NUMBER},
    layout.ENVIRONMENT_LOCK: {"python": str, "packages": dict},
    layout.CODE_LOCK: {"packages": dict, "source": dict},
    layout.MODELS_LOCK: {"models": list},
    layout.NOISE: {"metric": str, "statistic": str, "sd_log_ratio": (float, NoneType), "n": int},
    layout.ENVIRONMENT: {"id": dict},
    layout.LINEAGE: {"plan_sha256": str, "built_by": dict},
    layout.RESULTS: {
        "arms": dict,
        "factor": (dict, NoneType),
        "primary": dict,
        "per_block": dict,
        "log_ratios": dict,
        "injected_delay_us": int,
        "runs": list,
        "rows": int,
    },
}

_SCHEMA = re.compile(rf"{re.escape(layout.SCHEMA_NAME)}/([1-9][0-9]{{0,3}})")


def check_packet_schema(document: Mapping[str, Any]) -> None:
    """Refuse a packet of a newer schema or with an unknown critical feature (E_SCHEMA_NEWER), before all else."""
    schema = document.get("schema")
    match = _SCHEMA.fullmatch(schema) if isinstance(schema, str) else None
    if match is None:
        raise PacketError("E_SCHEMA", f"is not a {layout.SCHEMA_NAME}", path=layout.PACKET)
    if int(match[1]) > layout.SCHEMA_VERSION:
        raise PacketError(
            "E_SCHEMA_NEWER",
            f"is {schema}, this reader knows {layout.SCHEMA}; install a newer counterproof",
            path=layout.PACKET,
        )
    critical = document.get("critical")
    if not isinstance(critical, list) or not all(isinstance(name, str) for name in critical):
        raise PacketError("E_SCHEMA", "critical is not a list of names", path=layout.PACKET)
    if unknown := sorted(set(critical) - layout.UNDERSTOOD):
        raise PacketError(
            "E_SCHEMA_NEWER",
            f"needs a reader that understands {', '.join(unknown)}; install a newer counterproof",
            path=layout.PACKET,
            details=unknown,
        )


def check_fields(path: str, document: Mapping[str, Any]) -> list[str]:
    """Hold a document against its schema; return the fields this version does not know.

    Raises PacketError E_SCHEMA for another schema, a missing field or a value of another type.
    """
    if document.get("schema") != SCHEMAS[path]:
        raise PacketError("E_SCHEMA", f"is not of schema {SCHEMAS[path]}", path=path)
    fields = FIELDS[path]
    for name, kinds in fields.items():
        if name not in document:
            raise PacketError("E_SCHEMA", f"lacks the field {name}", path=path)
        value = document[name]
        allowed = kinds if isinstance(kinds, tuple) else (kinds,)
        if type(value) not in allowed:
            raise PacketError("E_SCHEMA", f"{name} is a {type(value).__name__}", path=path)
    return sorted(set(document) - set(fields) - {"schema"})
