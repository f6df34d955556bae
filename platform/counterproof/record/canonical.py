"""Canonical JSON and the hashes built on it: the same content always has the same bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NoReturn

from counterproof.errors import EvidenceError


def dumps(value: Any) -> bytes:
    """Canonical bytes: sorted keys, no spaces, UTF-8. Raises ValueError for NaN and infinities."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def pretty(value: Any) -> bytes:
    """The same content for people: sorted keys, two spaces, a final newline. Also deterministic."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_json(value: Any) -> str:
    """sha256 over the canonical bytes of `value`."""
    return sha256_bytes(dumps(value))


def sha256_file(path: Path) -> str:
    """sha256 of a file's bytes, read in pieces. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def loads(data: bytes | str, *, name: str = "the document") -> Any:
    """Parse JSON strictly: a duplicate key, NaN or an infinity is an EvidenceError that names `name`."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{name} is not valid JSON: {error}") from None


def read_json(path: Path) -> Any:
    """Strictly parsed content of a file. Raises EvidenceError when it is missing or malformed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EvidenceError(f"{path.name} cannot be read: {error.strerror}", details=[str(path)]) from None
    return loads(data, name=path.name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"duplicate key {next(k for k in keys if keys.count(k) > 1)!r}")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that may be recorded")
