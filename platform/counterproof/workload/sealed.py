"""A sealed workload: requests in order, identified by the sha256 over their canonical rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from counterproof.errors import EvidenceError
from counterproof.record import canonical

SCHEMA = pa.schema(
    [
        ("request_index", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("max_new_tokens", pa.int32()),
        ("temperature", pa.float64()),
        ("top_k", pa.int32()),
        ("top_p", pa.float64()),
        ("min_p", pa.float64()),
        ("repetition_penalty", pa.float64()),
        ("seed", pa.int64()),
        ("stop", pa.list_(pa.string())),
        ("stop_token_ids", pa.list_(pa.int32())),
        ("ignore_eos", pa.bool_()),
        ("arrival_ns", pa.int64()),  # after the start of the load; NULL in a closed loop
    ]
)
# Only in workloads that have documents, so that all others keep their files and their identity.
DOCUMENT = pa.field("document_tokens", pa.int32())


@dataclass(frozen=True)
class SealedRequest:
    """One request. `arrival_ns`: nanoseconds after the load starts, None where a free slot decides."""

    request_index: int
    token_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    arrival_ns: int | None = None

    def row(self) -> dict[str, Any]:
        """The request as plain values, in the columns of SCHEMA."""
        row = dataclasses.asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in row.items()}


@dataclass(frozen=True)
class DocumentRequest(SealedRequest):
    """A request whose first `document_tokens` tokens are a document that others may have too; what follows is its
    own. A target may keep the document and be sent the rest alone."""

    document_tokens: int = 0

    @property
    def document(self) -> tuple[int, ...]:
        return self.token_ids[: self.document_tokens]


def sha256(requests: Sequence[SealedRequest]) -> str:
    """Identity of the workload: sha256 over one canonical JSON row a line."""
    return canonical.sha256_bytes(b"".join(canonical.dumps(request.row()) + b"\n" for request in requests))


def write(path: Path, requests: Sequence[SealedRequest]) -> str:
    """Write the requests as Parquet; returns their identity (not the file's hash)."""
    documents = any(isinstance(request, DocumentRequest) for request in requests)
    schema = SCHEMA.append(DOCUMENT) if documents else SCHEMA
    table = pa.Table.from_pylist([request.row() for request in requests], schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")
    return sha256(requests)


def read(path: Path, expected_sha256: str | None = None) -> list[SealedRequest]:
    """Read requests back. Raises EvidenceError when the file is damaged or is not the expected workload."""
    try:
        # Not `read_table`: that imports pandas, which a measured process has no other use for.
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (OSError, pa.ArrowInvalid) as error:
        raise EvidenceError(f"the workload {path.name} cannot be read: {error}") from None
    if table.schema.names not in (SCHEMA.names, [*SCHEMA.names, DOCUMENT.name]):
        raise EvidenceError(
            f"the workload {path.name} has columns {table.schema.names}, not those of its schema"
        )
    requests = [_request(row) for row in table.to_pylist()]
    if [request.request_index for request in requests] != list(range(len(requests))):
        raise EvidenceError(f"the workload {path.name} is not numbered from 0 without gaps")
    if expected_sha256 is not None and (found := sha256(requests)) != expected_sha256:
        raise EvidenceError(
            f"the workload {path.name} is not the registered one",
            details=[f"registered {expected_sha256}", f"found {found}"],
        )
    return requests


def _request(row: dict[str, Any]) -> SealedRequest:
    values: dict[str, Any] = {}
    for key, value in row.items():
        values[key] = tuple(value) if isinstance(value, list) else value
    return request_of(values)


def request_of(values: dict[str, Any]) -> SealedRequest:
    """The request of one row, with tuples for lists. Raises EvidenceError for a document that cannot be."""
    document = values.get(DOCUMENT.name)
    if document is None:
        return SealedRequest(**{key: value for key, value in values.items() if key != DOCUMENT.name})
    if not 0 < document < len(values["token_ids"]):
        raise EvidenceError(
            f"request {values['request_index']} of {len(values['token_ids'])} tokens cannot begin with a document "
            f"of {document}: at least one token has to follow it"
        )
    return DocumentRequest(**values)
