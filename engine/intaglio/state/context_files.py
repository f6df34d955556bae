"""Contexts on disk: a folder each, with a manifest of what it is and the bytes of its KV blocks.

    <folder>/<sha256 of the tenant, 32 digits>/<id>/manifest.json    tokens, identity, checksums, times
                                                    kv<group>.bin    block i at i * block bytes

A context is written beside its place and renamed into it, manifest last, so that a half-written one is never
seen. The manifest carries the sha256 of its content and one over everything; each block has a zlib.crc32. They
find damage, not forgery: whoever can write the folder can write both.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.errors import ContextDamagedError, ContextError, ContextMismatchError, UnknownContextError

SCHEMA = "intaglio-context/1"
MANIFEST = "manifest.json"
# A folder left by a process that died while it wrote; younger ones may still be written.
_ABANDONED_S = 3600.0


@dataclass(frozen=True, slots=True)
class ContextRecord:
    """What a context is. Times are seconds since the epoch.

    tokens       the whole document's token ids; only its full blocks are stored
    identity     what the KV depends on besides the tokens: must be the reading engine's own
    block_bytes  per pool group; checksums: per pool group, of every stored block
    """

    id: str
    tenant: str
    name: str
    version: int
    tokens: tuple[int, ...]
    block_tokens: int
    block_bytes: tuple[int, ...]
    checksums: tuple[tuple[int, ...], ...]
    identity: dict[str, str]
    created: float
    expires: float

    @property
    def blocks(self) -> int:
        """Stored blocks of each group."""
        return len(self.checksums[0]) if self.checksums else 0

    @property
    def nbytes(self) -> int:
        """Bytes that count against the quota: of the stored blocks, and four for each token id."""
        return self.blocks * sum(self.block_bytes) + 4 * len(self.tokens)

    def content(self) -> dict[str, Any]:
        """Everything that never changes, as plain values."""
        return {
            "id": self.id,
            "tenant": self.tenant,
            "name": self.name,
            "version": self.version,
            "tokens": list(self.tokens),
            "block_tokens": self.block_tokens,
            "block_bytes": list(self.block_bytes),
            "checksums": [list(own) for own in self.checksums],
            "identity": self.identity,
            "created": self.created,
        }

    @property
    def sha256(self) -> str:
        """Of the content."""
        return _digest(self.content())


class ContextFiles:
    """The contexts under one folder. Methods may be called from any thread; the folder appears with the first one.

    What the disk refuses is a ContextError of the field context_cache.folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, tenant: str, context: str) -> Path:
        """Where a context lies."""
        return self._home(tenant) / context

    def begin(self, tenant: str, context: str) -> Path:
        """A folder to write a context's blocks into."""
        home = self._home(tenant)
        partial = home / f".partial-{context}"
        with _on_disk("the document cannot be saved"):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in home.glob(".*"):
                with contextlib.suppress(FileNotFoundError):  # another process has cleared it away meanwhile
                    if time.time() - name.stat().st_mtime > _ABANDONED_S:
                        shutil.rmtree(name, ignore_errors=True)
            partial.mkdir(mode=0o700)
        return partial

    def commit(self, record: ContextRecord, partial: Path) -> None:
        """Put the manifest to the blocks and the folder in its place, safe against a crash."""
        with _on_disk("the document cannot be saved"):
            for file in partial.iterdir():
                _sync(file)
            self._write(partial / MANIFEST, record)
            partial.rename(self.place(record.tenant, record.id))
            _sync(partial.parent)

    def discard(self, partial: Path) -> None:
        """Give up a context that was begun."""
        shutil.rmtree(partial, ignore_errors=True)

    def rewrite(self, record: ContextRecord) -> None:
        """Replace a manifest, e.g. with a later end."""
        with _on_disk("the context keeps its end, its manifest cannot be written"):
            self._write(self.place(record.tenant, record.id) / MANIFEST, record)

    def delete(self, tenant: str, context: str) -> None:
        """Remove a context's files; it is gone from view at once."""
        place = self.place(tenant, context)
        grave = place.with_name(f".deleted-{context}")
        with _on_disk("the context cannot be deleted"):
            try:
                place.rename(grave)
            except FileNotFoundError:
                return
        shutil.rmtree(grave, ignore_errors=True)

    def ids(self, tenant: str) -> list[str]:
        """The ids of the tenant's contexts, damaged ones included, sorted."""
        home = self._home(tenant)
        with _on_disk("the contexts cannot be listed"):
            if not home.is_dir():
                return []
            return sorted(path.name for path in home.iterdir() if path.is_dir() and path.name[0] != ".")

    def read(self, tenant: str, context: str) -> ContextRecord:
        """A context's manifest. Raises UnknownContextError, ContextMismatchError, ContextDamagedError."""
        path = self.place(tenant, context) / MANIFEST
        try:
            raw = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            if path.parent.is_dir():
                raise _damaged(context, "it has no manifest") from None
            raise unknown(context) from None
        except OSError as error:
            raise _damaged(context, f"its manifest cannot be read: {error}") from error
        record = _parse(context, raw)
        if (record.id, record.tenant) != (context, tenant):
            raise _damaged(context, "its manifest belongs to another context")
        return record

    def verify(self, record: ContextRecord) -> None:
        """Check every stored block against the manifest. Raises ContextDamagedError."""
        place = self.place(record.tenant, record.id)
        for group, (size, checksums) in enumerate(zip(record.block_bytes, record.checksums, strict=True)):
            path = payload(place, group)
            if not checksums:
                continue
            try:
                _verify_file(record.id, path, size, checksums)
            except OSError as error:
                raise _damaged(record.id, f"{path.name} cannot be read: {error}") from error

    def _home(self, tenant: str) -> Path:
        return self.folder / hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _write(self, path: Path, record: ContextRecord) -> None:
        body: dict[str, Any] = {"schema": SCHEMA, "content": record.content(), "sha256": record.sha256}
        body["expires"] = record.expires
        body["seal"] = _digest(body)
        beside = path.with_name(f".{path.name}")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_canonical(body))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


@contextlib.contextmanager
def _on_disk(failing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ContextError(f"{failing}: {error}", field="context_cache.folder") from error


def payload(place: Path, group: int) -> Path:
    """The file of a pool group's blocks in a context's folder."""
    return place / f"kv{group}.bin"


def unknown(context: str) -> UnknownContextError:
    """The error for an id that this tenant does not have."""
    return UnknownContextError(
        f"there is no context {ascii(context)[:60]}; create it, or list those that there are", field="context"
    )


def _damaged(context: str, what: str) -> ContextDamagedError:
    return ContextDamagedError(
        f"context {context} is damaged: {what}; delete and create it again", field="context"
    )


def _verify_file(context: str, path: Path, size: int, checksums: tuple[int, ...]) -> None:
    held = path.stat().st_size
    if held != size * len(checksums):
        raise _damaged(context, f"{path.name} has {held} bytes instead of {size * len(checksums)}")
    with path.open("rb") as file:
        for index, noted in enumerate(checksums):
            if zlib.crc32(file.read(size)) != noted:
                raise _damaged(context, f"block {index} in {path.name} does not match its checksum")


def _parse(context: str, raw: bytes) -> ContextRecord:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(context, f"its manifest is no JSON: {error}") from error
    schema = body.get("schema") if isinstance(body, dict) else None
    if isinstance(schema, str) and schema != SCHEMA and schema.startswith("intaglio-context/"):
        raise ContextMismatchError(
            f"context {context} is of the format {schema}, this version reads {SCHEMA}; create it again",
            field="context",
        )
    if schema != SCHEMA or not _sealed(body):
        raise _damaged(context, "its manifest does not match its seal")
    try:
        record = _record(body["content"], body["expires"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(context, f"its manifest is incomplete: {error!r}") from error
    if record.sha256 != body.get("sha256") or not _consistent(record):
        raise _damaged(context, "its manifest contradicts itself")
    return record


def _sealed(body: dict[str, Any]) -> bool:
    try:
        return bool(body.pop("seal", None) == _digest(body))
    except (ValueError, RecursionError):  # numbers that are none, or too deep: no writer of ours made it
        return False


def _record(content: dict[str, Any], expires: float) -> ContextRecord:
    return ContextRecord(
        id=content["id"],
        tenant=content["tenant"],
        name=content["name"],
        version=content["version"],
        tokens=tuple(content["tokens"]),
        block_tokens=content["block_tokens"],
        block_bytes=tuple(content["block_bytes"]),
        checksums=tuple(tuple(own) for own in content["checksums"]),
        identity=dict(content["identity"]),
        created=content["created"],
        expires=expires,
    )


def _consistent(record: ContextRecord) -> bool:
    numbers = (*record.tokens, *record.block_bytes, record.block_tokens)
    return (
        all(type(number) is int and number >= 0 for number in numbers)
        and all(type(moment) in (int, float) for moment in (record.created, record.expires))
        and record.block_tokens > 0
        and len(record.block_bytes) == len(record.checksums)
        and {len(own) for own in record.checksums} == {len(record.tokens) // record.block_tokens}
    )


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(value: object) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
