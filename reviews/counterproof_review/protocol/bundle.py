"""What parties hand each other: registry, ledgers, packets and results as one file in the packet's strict zip form."""

from __future__ import annotations

import re
from pathlib import Path

from counterproof.record import atomic
from counterproof_review.packet import archive
from counterproof_review.packet.errors import PacketError
from counterproof_review.packet.reader import Archive
from counterproof_review.protocol import folder as folders
from counterproof_review.protocol.events import PARTIES
from counterproof_review.trust import ledger, registry
from counterproof_review.trust.errors import TrustError

MAX_LEDGER_BYTES = 1 << 28
_NAME = re.compile(
    r"registry\.dsse\.json|ledgers/(?:author|reviewer|steward)\.jsonl|packets/[0-9a-f]{16}\.rep\.zip"
    r"|challenge\.json|verdict\.json"
)


def allowed(name: str) -> bool:
    """Whether a file of a review's folder is handed on: raw records of attempts and locks are not."""
    return _NAME.fullmatch(name) is not None


def write(root: Path, target: Path) -> list[str]:
    """Write the bundle of a review; returns the names in it. Raw records of attempts and locks stay behind."""
    files: dict[str, bytes | Path] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not path.is_symlink() and _NAME.fullmatch(name):
            files[name] = path
    archive.write(target, files)
    return sorted(files)


def merge(root: Path, source: Path) -> list[str]:
    """Take over from a bundle what continues what is here; returns the names that changed.

    A ledger must continue the copy here or be continued by it. Everything is verified before anything is written.
    Raises PacketError for a bundle in another form, TrustError E_FORK with both entries, and what verifying raises.
    """
    with Archive.open(source) as opened:
        foreign = [name for name in opened.members if not _NAME.fullmatch(name)]
        if foreign:
            raise PacketError("E_EXTRA", "a bundle has no such file", path=foreign[0])
        given = {name: opened.read(name, MAX_LEDGER_BYTES) for name in opened.members}
    place = folders.Folder(root)
    changes = {**_registry(place, given), **_files(root, given)}
    _check_ledgers(place, given, changes)
    for name, data in changes.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(target, data)
    folders.read(root)
    return sorted(changes)


def _registry(place: folders.Folder, given: dict[str, bytes]) -> dict[str, bytes]:
    """The newer of two registries; a jump over a version is taken when the same steward signed both."""
    data = given.get(folders.REGISTRY)
    if data is None or (place.registry.is_file() and place.registry.read_bytes() == data):
        return {}
    if not place.registry.is_file():
        return {folders.REGISTRY: data}
    here = folders.read_registry(place.registry)
    there = registry.read(data, here.steward)
    if there.version == here.version:
        raise TrustError("E_REGISTRY", f"there are two registries of version {here.version}")
    if there.version < here.version:
        return {}
    if there.version == here.version + 1:
        registry.read(data, here.steward, here)
    return {folders.REGISTRY: data}


def _files(root: Path, given: dict[str, bytes]) -> dict[str, bytes]:
    """Packets and results: new ones are taken, one that is here never changes."""
    found = {}
    for name, data in given.items():
        if name == folders.REGISTRY or name.startswith("ledgers/"):
            continue
        path = root / name
        if path.is_file() and path.read_bytes() != data:
            raise TrustError("E_FORK", f"another {name} is here already")
        if not path.is_file():
            found[name] = data
    return found


def _check_ledgers(place: folders.Folder, given: dict[str, bytes], changes: dict[str, bytes]) -> None:
    data = changes.get(folders.REGISTRY)
    known = folders.check_registry(data) if data is not None else folders.read_registry(place.registry)
    copies = {}
    for role in PARTIES:
        name = f"ledgers/{role}.jsonl"
        path = place.ledger(role)
        mine = path.read_bytes() if path.is_file() else b""
        theirs = given.get(name, b"")
        here, there = ledger.verify(mine, known), ledger.verify(theirs, known)
        ledger.check_same(here, there)
        copies[role] = there if len(there) > len(here) else here
        if len(there) > len(here):
            changes[name] = theirs
    for role in PARTIES:
        ledger.check_witnessed(copies[role], role, [copies[other] for other in PARTIES if other != role])
    for name in folders.NAMED:
        if name in changes:
            folders.check_named(copies, name, changes[name])
