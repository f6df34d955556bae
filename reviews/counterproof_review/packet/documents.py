"""The JSON documents of a packet: their schemas' names and the shape each must have.

A field that this version does not know is kept, reported as a warning and otherwise ignored; what a reader
must not ignore stands in PACKET.json under `critical`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

from counterproof_review.challenge import space
from counterproof_review.packet import layout, shape
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.shape import HEX64, OPAQUE, Number, Shape, Table, Text

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
    layout.CHALLENGE: space.SCHEMA,
}
ARM_SCHEMA = "replication-arm/1"
PADDED_ARM_SCHEMA = "replication-arm/2"  # with a filler, so that all arm files have one size

_COUNT = Number(1, layout.MAX_LINES, whole=True)
_NATURAL = Number(0, layout.MAX_LINES, whole=True)
_SIZE = Number(0, float(1 << 53), whole=True)
_REAL = Number(-1e300, 1e300, null=True)
_SECONDS = Number(0.001, 1e7)
_WORD = Text(r"[A-Za-z0-9_.:/-]{1,200}")
_BLOCKS = Number(1, 9999, whole=True)

FIELDS: dict[str, Mapping[str, Shape]] = {
    layout.PACKET: {
        "packet_id": Text(r"[0-9a-f]{16}"),
        "claim_id": HEX64,
        "supersedes": Text(r"[0-9a-f]{16}", null=True),
        "blinding_level": _WORD,
        "blinding_note": str,
        "critical": [str],
        "limits": Table(_SIZE),
        "arms": Number(2, 64, whole=True),
        "blocks": _BLOCKS,
        "requests": [_COUNT],
        "warmup_requests": _NATURAL,
    },
    layout.PREREG: {
        "plan_sha256": HEX64,
        "unit": str,
        "blocks": _BLOCKS,
        "min_blocks": Number(layout.MIN_BLOCKS, 9999, whole=True),
        "primary": {"metric": _WORD, "statistic": _WORD, "sesoi": _REAL, "unit": str},
        "guardrails": [{"metric": _WORD, "statistic": _WORD, "kind": _WORD, "margin": _REAL}],
        # A wider band, or fewer blocks, would make agreement easier than this reader grants it.
        "consistency_band": Number(0.001, layout.CONSISTENCY_BAND),
        "exclusions": str,
        "decision_rule": _WORD,
        "exploratory": bool,
    },
    layout.SCOPE: {
        "model": Text(r"sha256:[0-9a-f]{64}"),
        "device": _WORD,
        "dtype": _WORD,
        "hardware": str,
        "prompt_tokens": [_COUNT],
        "output_tokens": [_COUNT],
        "concurrency": _COUNT,
    },
    layout.SCHEDULE: {"blocks": _BLOCKS, "rule": _WORD, "how": str},
    layout.RUN_LOCK: {
        "executor": _WORD,
        "target": Text(r"[a-z][a-z0-9_]{0,63}"),
        "workload": {"concurrency": _COUNT, "request_timeout_s": _SECONDS},
        "run_deadline_s": _SECONDS,
    },
    layout.ENVIRONMENT_LOCK: {"python": str, "packages": Table(str)},
    layout.CODE_LOCK: {
        "packages": Table({"version": str, "tree_sha256": HEX64}),
        "source": Table((str, NoneType)),
    },
    layout.MODELS_LOCK: {
        "models": [
            {
                "sha256": HEX64,
                "locator": Text(r"[A-Za-z0-9_./-]{0,200}"),
                "files": [{"name": str, "sha256": HEX64, "size": _SIZE}],
            }
        ]
    },
    layout.NOISE: {
        "metric": _WORD,
        "statistic": _WORD,
        "sd_log_ratio": Number(0.0, 1e300, null=True),
        "n": _NATURAL,
    },
    layout.ENVIRONMENT: {"id": Table((str, int, float, NoneType))},
    layout.LINEAGE: {"plan_sha256": HEX64, "built_by": {"tool": str, "format": int}},
    layout.RESULTS: {
        "arms": Table(OPAQUE),
        "factor": (dict, NoneType),
        "primary": {"metric": _WORD, "statistic": _WORD, "better": Text("lower|higher|equal")},
        "per_block": Table([_REAL]),
        "log_ratios": Table([_REAL]),
        "evidence_valid": (bool, NoneType),
        "injected_delay_us": _SIZE,
        "runs": [
            {
                "arm": OPAQUE,
                "block": Number(0, 9999, whole=True),
                "manifest_sha256": HEX64,
                "outputs_sha256": [Text(r"[0-9a-f]{64}", null=True)],
            }
        ],
        "rows": _SIZE,
    },
    layout.CHALLENGE: {"dimensions": [dict], "budget": Table(_COUNT), "generator": _WORD},
}


def own_texts() -> list[str]:
    """Names that stand in every packet, whatever it is about: members, schemas, and the keys of documents."""
    return [*FIELDS, *SCHEMAS.values(), ARM_SCHEMA, PADDED_ARM_SCHEMA, layout.SEALED, *_keys(FIELDS)]


def _keys(value: object) -> Iterator[str]:
    """All keys of nested shapes."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _keys(inner)
    elif isinstance(value, list):
        yield from _keys(value[0])
    elif isinstance(value, Table):
        yield from _keys(value.value)


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
            f"needs a reader that understands {', '.join(map(ascii, unknown))}; install a newer counterproof",
            path=layout.PACKET,
            details=unknown,
        )
    if set(layout.LEVELS) <= set(critical):
        raise PacketError("E_SCHEMA", "claims to be open and sealed at once", path=layout.PACKET)


def form_of(document: Mapping[str, Any]) -> str:
    """The packet's form, from a PACKET.json that `check_packet_schema` accepted."""
    return layout.SEALED_FORM if layout.SEALED_FORM in document["critical"] else layout.OPEN


def check_fields(path: str, document: Mapping[str, Any]) -> list[str]:
    """Hold a document against its schema; return the fields this version does not know.

    Raises PacketError E_SCHEMA for another schema, a missing field or a value of another type.
    """
    if document.get("schema") != SCHEMAS[path]:
        raise PacketError("E_SCHEMA", f"is not of schema {SCHEMAS[path]}", path=path)
    return shape.unknown_fields(document, {"schema": str, **FIELDS[path]}, path)
