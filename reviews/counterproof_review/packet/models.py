"""Models by hash: the lock that a packet carries instead of weights, and the search for what it names.

A model is found by the SHA-256 of its files, never by its name or place, and is laid out anew under the
names of the lock. Only safetensors weights and plain JSON or template files can be named.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof_review.packet import layout
from counterproof_review.packet.errors import PacketError
from intaglio.models import catalogue

SCHEMA = "replication-models/1"
PREFIX = "sha256:"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.(?:safetensors|json|jinja)")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ModelFile:
    """One file of a model: the name it has beside the others, its digest and size in bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class ModelLock:
    """A model by content. `locator` says where it may be had (a catalogue name or a hub id), as a hint only."""

    sha256: str
    locator: str
    files: tuple[ModelFile, ...]

    @property
    def reference(self) -> str:
        """What stands in an arm's configuration in place of a path."""
        return PREFIX + self.sha256


def lock_folder(folder: Path, locator: str) -> ModelLock:
    """The lock of a complete model folder. A locator that is a path is dropped: it would name a machine."""
    hashes = catalogue.file_hashes(folder)
    files = tuple(ModelFile(n, d, (folder / n).stat().st_size) for n, d in sorted(hashes.items()))
    hint = locator if re.fullmatch(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", locator) else ""
    if Path(locator).exists() and locator not in catalogue.SHIPPED + catalogue.FETCHED:
        hint = ""
    return ModelLock(catalogue.fingerprint(folder)["model"], hint, files)


def to_document(locks: Iterable[ModelLock]) -> dict[str, Any]:
    """The content of models.lock.json."""
    rows = [
        {
            "sha256": lock.sha256,
            "locator": lock.locator,
            "files": [{"name": f.name, "sha256": f.sha256, "size": f.size} for f in lock.files],
        }
        for lock in sorted(locks, key=lambda lock: lock.sha256)
    ]
    return {"schema": SCHEMA, "models": rows}


def from_document(document: Mapping[str, Any]) -> dict[str, ModelLock]:
    """`{reference: lock}`. Raises PacketError E_SCHEMA, or E_UNSAFE for a file name that must not be laid out."""
    try:
        locks = [
            ModelLock(
                _digest(row["sha256"]),
                str(row["locator"]),
                tuple(
                    ModelFile(_safe(f["name"]), _digest(f["sha256"]), int(f["size"])) for f in row["files"]
                ),
            )
            for row in document["models"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise PacketError("E_SCHEMA", f"a model lacks {error}", path=layout.MODELS_LOCK) from None
    for lock in locks:
        names = [file.name.casefold() for file in lock.files]
        if len(set(names)) != len(names) or not names:
            raise PacketError("E_SCHEMA", "a model has no files or one name twice", path=layout.MODELS_LOCK)
    return {lock.reference: lock for lock in locks}


def find(locks: Iterable[ModelLock], roots: Iterable[Path]) -> dict[str, dict[str, Path]]:
    """`{reference: {file name: where it lies}}` for every model, searched under `roots` by size, then digest.

    Raises PacketError E_MODEL_MISSING naming every digest that was not found and what to do.
    """
    locks = tuple(locks)
    wanted: dict[int, set[str]] = {}
    for lock in locks:
        for file in lock.files:
            wanted.setdefault(file.size, set()).add(file.sha256)
    found = _search(wanted, tuple(roots))
    missing = [
        f"{file.sha256} ({file.size} bytes, named {file.name})"
        for lock in locks
        for file in lock.files
        if file.sha256 not in found
    ]
    if missing:
        raise PacketError(
            "E_MODEL_MISSING",
            "no file with this SHA-256 lies in the models folders; " + _advice(locks),
            path=missing[0].split(" ")[0],
            details=missing,
        )
    return {lock.reference: {file.name: found[file.sha256] for file in lock.files} for lock in locks}


def lay_out(lock: ModelLock, files: Mapping[str, Path], folder: Path) -> Path:
    """Make `folder` a model folder of links to the found files, under the names of the lock."""
    folder.mkdir(parents=True)
    for file in lock.files:
        (folder / file.name).symlink_to(files[file.name])
    return folder


def default_roots() -> list[Path]:
    """Where models are looked for when no folder is named: fetched ones, then those that ship."""
    shipped = [catalogue.catalogue_folder(name) for name in catalogue.SHIPPED]
    return [catalogue.models_folder(), *shipped]


def _search(wanted: Mapping[int, set[str]], roots: tuple[Path, ...]) -> dict[str, Path]:
    left = set().union(*wanted.values()) if wanted else set()
    found: dict[str, Path] = {}
    for path in _files(roots):
        if not left:
            break
        try:
            size = path.stat().st_size
            if not (size in wanted and wanted[size] & left):
                continue
            digest = _sha256(path)
        except OSError:  # unreadable or gone: it cannot be the one
            continue
        if digest in left:
            found[digest] = path.resolve()
            left.discard(digest)
    return found


def _files(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if path.is_file():
                    yield path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _advice(locks: tuple[ModelLock, ...]) -> str:
    fetched = [lock.locator for lock in locks if lock.locator in catalogue.FETCHED]
    if fetched:
        return f"run 'counterproof models fetch {fetched[0]}', or name a folder with --models"
    return "name a folder that holds it with --models"


def _digest(value: object) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError(f"a SHA-256 in {value!r}")
    return value


def _safe(name: object) -> str:
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name) or name.startswith("."):
        raise PacketError("E_UNSAFE", f"a model file may not be called {name!r}", path=layout.MODELS_LOCK)
    return name
