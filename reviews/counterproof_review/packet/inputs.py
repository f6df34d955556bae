"""Requests as they stand in a packet: one canonical row a line, the same rows a study's workload is known by.

So the SHA-256 of an input file is the workload's registered identity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import EvidenceError
from counterproof.workload import sealed
from counterproof.workload.sealed import SealedRequest
from counterproof_review.packet import canonical
from counterproof_review.packet.content import lines
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive

_KEYS = frozenset(field.name for field in dataclasses.fields(SealedRequest))
_WHOLE = ("request_index", "max_new_tokens", "top_k", "seed")
_REAL = ("temperature", "top_p", "min_p", "repetition_penalty")
_MAX_TOKEN = (1 << 31) - 1


@dataclass
class Extent:
    """The least and the most tokens of the requests that were added."""

    prompts: tuple[int, int] | None = None
    outputs: tuple[int, int] | None = None

    def add(self, request: SealedRequest) -> None:
        self.prompts = _wider(self.prompts, len(request.token_ids))
        self.outputs = _wider(self.outputs, request.max_new_tokens)

    def spans(self) -> dict[str, tuple[int, int]]:
        """By the names that scope.json uses; nothing before a request was added."""
        spans = {"prompt_tokens": self.prompts, "output_tokens": self.outputs}
        return {name: span for name, span in spans.items() if span is not None}


def _wider(span: tuple[int, int] | None, value: int) -> tuple[int, int]:
    return (value, value) if span is None else (min(span[0], value), max(span[1], value))


def to_lines(requests: Sequence[SealedRequest]) -> bytes:
    """The content of an input file."""
    return b"".join(canonical.encode(request.row()) for request in requests)


def read(archive: Archive, path: str) -> Iterator[SealedRequest]:
    """The requests of an input file, streamed. Raises PacketError E_ROWS for a row that is not the next request."""
    for index, row in enumerate(lines(archive, path)):
        yield _request(row, index, path)


def unpack(archive: Archive, path: str, target: Path) -> str:
    """Write an input file as a sealed workload; return its identity."""
    return sealed.write(target, list(read(archive, path)))


def _request(row: dict[str, Any], index: int, path: str) -> SealedRequest:
    if set(row) - {sealed.DOCUMENT.name} != _KEYS or row["request_index"] != index:
        raise PacketError("E_ROWS", f"line {index + 1} is not request {index}", path=path)
    faults = [name for name in _WHOLE if type(row[name]) is not int]
    faults += [name for name in _REAL if type(row[name]) not in (int, float)]
    faults += [name for name in ("token_ids", "stop_token_ids") if not _token_ids(row[name])]
    if not row["token_ids"]:
        faults.append("token_ids")
    if not isinstance(row["stop"], list) or not all(isinstance(text, str) for text in row["stop"]):
        faults.append("stop")
    if type(row["ignore_eos"]) is not bool:
        faults.append("ignore_eos")
    if row["arrival_ns"] is not None and type(row["arrival_ns"]) is not int:
        faults.append("arrival_ns")
    if type(row.get(sealed.DOCUMENT.name, 0)) is not int:
        faults.append(sealed.DOCUMENT.name)
    if faults:
        raise PacketError("E_ROWS", f"request {index} has no valid {faults[0]}", path=path)
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    try:
        return sealed.request_of(values)
    except EvidenceError as error:
        raise PacketError("E_ROWS", str(error), path=path) from None


def _token_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(i) is int and 0 <= i <= _MAX_TOKEN for i in value)
