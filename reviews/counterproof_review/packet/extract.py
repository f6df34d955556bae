"""Writing a packet's public part into an empty folder, after everything has been checked."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from counterproof_review.packet import layout
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.leaks import is_public
from counterproof_review.packet.manifest import Entry
from counterproof_review.packet.reader import Archive


def empty_folder(path: Path) -> Path:
    """Make `path`, or accept it if it is an empty folder; anything else is E_DESTINATION."""
    if path.is_symlink():
        raise PacketError(
            "E_DESTINATION", "is a link; name a folder that is empty or not there", path=path.name
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise PacketError("E_DESTINATION", "is not empty", path=path.name)
    except OSError as error:
        raise PacketError("E_DESTINATION", f"cannot be used: {error.strerror}", path=path.name) from None
    return path.resolve()


def public_part(archive: Archive, entries: dict[str, Entry], target: Path) -> None:
    """Write the public members below `target` (new, mode 0700); files are new, mode 0600, hashed as written.

    Call only on a verified packet. Raises E_HASH if a member changed since.
    """
    target.mkdir(mode=0o700)
    for path, entry in entries.items():
        if is_public(path) and path != layout.MANIFEST:
            _write(archive, entry, target / path)


def _write(archive: Archive, entry: Entry, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    digest = hashlib.sha256()
    with os.fdopen(descriptor, "wb") as out:
        for chunk in archive.stream(entry.path):
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != entry.sha256:
        raise PacketError("E_HASH", "changed while it was read", path=entry.path)
