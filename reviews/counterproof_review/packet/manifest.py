"""The closed-world manifest: every member but the manifest itself, with digest, size and role."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from counterproof_review.packet import canonical, layout
from counterproof_review.packet.content import check_suffix, lines
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive

_KEYS = {"path", "sha256", "size", "role", "media_type"}


@dataclass(frozen=True)
class Entry:
    """One line of the manifest."""

    path: str
    sha256: str
    size: int
    role: str
    media_type: str


def build(files: Mapping[str, bytes | Path]) -> bytes:
    """The manifest of `files`, one canonical line per path, sorted by path."""
    return b"".join(canonical.encode(asdict(_describe(path, files[path]))) for path in sorted(files))


def root(manifest: bytes) -> str:
    """The packet's root: the SHA-256 of its manifest, which covers every other byte of content."""
    return hashlib.sha256(manifest).hexdigest()


def read(archive: Archive, form: str = layout.OPEN) -> dict[str, Entry]:
    """Read the manifest and hold it against the members: the same paths, each once, in order.

    form   the packet's form; a file of the other form is E_EXTRA. Raises E_MISSING, E_EXTRA, E_DUPLICATE, E_ORDER, E_JSON, or E_SCHEMA for a line of another form.
    """
    entries: dict[str, Entry] = {}
    previous = ""
    for line in lines(archive, layout.MANIFEST):
        entry = _entry(line)
        if entry.path in entries:
            raise PacketError("E_DUPLICATE", "is listed twice in the manifest", path=entry.path)
        if entry.path < previous:
            raise PacketError("E_ORDER", "the manifest is not sorted by path", path=entry.path)
        previous = entry.path
        entries[entry.path] = entry
    _check_world(archive, entries, form)
    return entries


def check_member(archive: Archive, entry: Entry) -> None:
    """Hold one member against its line: size, then digest (streamed)."""
    size = archive.members[entry.path].size
    if size != entry.size:
        raise PacketError("E_HASH", f"has {size} bytes, not {entry.size}", path=entry.path)
    if archive.sha256(entry.path) != entry.sha256:
        raise PacketError("E_HASH", "its content is not what the manifest says", path=entry.path)


def _describe(path: str, content: bytes | Path) -> Entry:
    place = layout.place_of(path)
    digest = hashlib.sha256()
    size = 0
    if isinstance(content, bytes):
        digest.update(content)
        size = len(content)
    else:
        with content.open("rb") as file:
            while chunk := file.read(layout.CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    return Entry(path, digest.hexdigest(), size, place.role, place.media_type)


def _entry(line: dict[str, object]) -> Entry:
    if set(line) != _KEYS:
        raise PacketError("E_SCHEMA", "a line has other keys than the manifest's", path=layout.MANIFEST)
    path, sha256, size = line["path"], line["sha256"], line["size"]
    if not isinstance(path, str) or not isinstance(sha256, str) or type(size) is not int or size < 0:
        raise PacketError("E_SCHEMA", "a line has a value of another type", path=layout.MANIFEST)
    layout.check_name(path)
    check_suffix(path)
    place = layout.place_of(path)
    if (line["role"], line["media_type"]) != (place.role, place.media_type):
        raise PacketError("E_SCHEMA", "its role is not the one its place gives it", path=path)
    return Entry(path, sha256, size, place.role, place.media_type)


def _check_world(archive: Archive, entries: Mapping[str, Entry], form: str) -> None:
    signature = {layout.SIGNATURE} if form == layout.SEALED_FORM else set()
    present = set(archive.members) - {layout.MANIFEST} - signature
    listed = set(entries)
    if missing := sorted((listed - present) | (signature - set(archive.members))):
        raise PacketError("E_MISSING", "is needed but not in the packet", path=missing[0], details=missing)
    if extra := sorted(present - listed):
        raise PacketError("E_EXTRA", "is in the packet but not in its manifest", path=extra[0], details=extra)
    for path in sorted(listed):
        if layout.place_of(path).form not in ("", form):
            raise PacketError("E_EXTRA", f"does not belong into a packet with {form}", path=path)
    for place in layout.PLACES:
        if place.form in ("", form) and not any(place.pattern.fullmatch(path) for path in listed):
            raise PacketError("E_MISSING", "a packet must have it", path=place.name)
