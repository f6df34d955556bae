"""Files that are there whole or not at all, also after a power cut or kill -9."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from counterproof.record import canonical, injection


def write_bytes(path: Path, data: bytes) -> None:
    """Write `path` atomically: temporary file beside it, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as stream:
        stream.write(data)
        stream.flush()
        injection.flush(stream.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> str:
    """Write `value` as readable, deterministic JSON; returns the sha256 of the file."""
    data = canonical.pretty(value)
    write_bytes(path, data)
    return canonical.sha256_bytes(data)


def sync_file(path: Path) -> None:
    """Flush a written file to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        injection.flush(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries (new names, renames) to the disk."""
    sync_file(path)
