"""Shapes of a packet's files. Those of its documents are the ones that the reader itself holds them against."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType

from counterproof.measure import bottleneck
from counterproof_review.packet import documents, layout
from counterproof_review.packet.shape import HEX64, OPAQUE, Number, Shape, Table, Text
from counterproof_review.schema.kinds import Choice, Closed, Const, Either, Open
from counterproof_review.trust import seal

PACKET_ID = Text(r"[0-9a-f]{16}")
BASE64 = Text(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
REAL = (int, float, NoneType)
_WHOLE = Number(0, float(1 << 53), whole=True)
_TOKEN = Number(0, (1 << 31) - 1, whole=True)
_SCALARS = Table((str, int, float, bool, NoneType))
COMMITMENT = Closed({"plain": HEX64, "key": HEX64, "ciphertext": HEX64})

REQUEST = Closed(
    {
        "request_index": _WHOLE,
        "token_ids": [_TOKEN],
        "max_new_tokens": _WHOLE,
        "seed": int,
        "temperature": float,
        "top_k": int,
        "top_p": float,
        "min_p": float,
        "repetition_penalty": float,
        "stop": [str],
        "stop_token_ids": [_TOKEN],
        "ignore_eos": bool,
        "arrival_ns": (int, NoneType),
    },
    {"document_tokens": Number(1, (1 << 31) - 1, whole=True)},
)
MANIFEST_LINE = Closed(
    {
        "path": Text(r"[A-Za-z0-9._/-]{1,120}"),
        "sha256": HEX64,
        "size": _WHOLE,
        "role": Choice(tuple(sorted({place.role for place in layout.PLACES}))),
        "media_type": Choice((layout.JSON, layout.JSONL, layout.PARQUET)),
    }
)
ARM = Either(
    (
        Closed({"schema": Const(documents.ARM_SCHEMA), "engine": _SCALARS}),
        Closed(
            {"schema": Const(documents.PADDED_ARM_SCHEMA), "engine": _SCALARS, "filler": Text(r"\.*")},
        ),
    )
)
SEALED = Closed(
    {
        "schema": Const(seal.SCHEMA),
        "context": PACKET_ID,
        "nonce": BASE64,
        "ciphertext": BASE64,
        "commitment": COMMITMENT,
        "escrow": [Closed({"keyid": HEX64, "ephemeral": BASE64, "box": BASE64})],
    }
)
SEALED_CONTENT = Open(
    {
        "schema": Const("replication-sealed/1"),
        "packet_id": PACKET_ID,
        "label_key": HEX64,
        "arms": Table(OPAQUE),
        "factor": (dict, NoneType),
        "primary": {"metric": str, "statistic": str, "better": Choice(("lower", "higher", "equal"))},
        "per_block": Table([REAL]),
        "log_ratios": Table([REAL]),
        "evidence_valid": (bool, NoneType),
        "salt": {"delay_us": _WHOLE},
        "facts": {"study": str, "experiment": str, "mechanism": str},
        "runs": [{"arm": OPAQUE, "block": _WHOLE, "manifest_sha256": HEX64, "outputs_sha256": HEX64}],
        "rows_sha256": HEX64,
    },
    {"regime": Table(Choice(bottleneck.KINDS))},
)

# Name of the schema -> (file or files that it describes, shape).
FILES: Mapping[str, tuple[str, Shape]] = {
    "manifest-line": (f"each line of {layout.MANIFEST}", MANIFEST_LINE),
    "arm": (f"{layout.ARMS}<arm>.json", ARM),
    "request": (f"each line of {layout.INPUTS}*.jsonl", REQUEST),
    "sealed": (layout.SEALED, SEALED),
    "sealed-content": (f"what {layout.SEALED} opens to", SEALED_CONTENT),
    "packet-keys": (
        "<study>/packets/<id>.key.json, which stays with the author",
        Closed(
            {
                "schema": Const("replication-keys/1"),
                "packet_id": PACKET_ID,
                "label_key": HEX64,
                "nonce": HEX64,
            }
        ),
    ),
}
_DOCUMENTS: Mapping[str, str] = {
    layout.PACKET: "packet",
    layout.PREREG: "prereg",
    layout.SCOPE: "scope",
    layout.SCHEDULE: "schedule",
    layout.RUN_LOCK: "run-lock",
    layout.ENVIRONMENT_LOCK: "libraries-lock",
    layout.CODE_LOCK: "code-lock",
    layout.MODELS_LOCK: "models-lock",
    layout.NOISE: "noise",
    layout.ENVIRONMENT: "environment",
    layout.LINEAGE: "lineage",
    layout.RESULTS: "results",
    layout.CHALLENGE: "challenge-space",
}


def shapes() -> dict[str, tuple[str, Shape]]:
    """Every schema of a packet: name -> (what it describes, shape)."""
    read = {
        name: (path, {"schema": Const(documents.SCHEMAS[path]), **documents.FIELDS[path]})
        for path, name in _DOCUMENTS.items()
    }
    return {**read, **FILES}


def name_of(path: str) -> str | None:
    """The schema that a member of a packet is held to, line by line where it has lines; None for tables and signatures."""
    if path in _DOCUMENTS:
        return _DOCUMENTS[path]
    if path == layout.MANIFEST:
        return "manifest-line"
    if path.startswith(layout.ARMS):
        return "arm"
    if path.startswith(layout.INPUTS):
        return "request"
    return "sealed" if path == layout.SEALED else None
