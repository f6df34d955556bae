"""A run's seal: `manifest.json` names every file with its sha256 and is written last. No manifest, no record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from counterproof.errors import EvidenceError
from counterproof.record import atomic, canonical

FILE_NAME = "manifest.json"
SCHEMA = "counterproof-run/1"


def is_sealed(folder: Path) -> bool:
    """Whether the folder holds a finished record (which says nothing about its integrity)."""
    return (folder / FILE_NAME).is_file()


def list_files(folder: Path) -> list[str]:
    """Relative paths of every file under `folder` except the manifest, sorted. A link is an EvidenceError."""
    names: list[str] = []
    open_folders = [""]
    while open_folders:
        inside = open_folders.pop()
        with os.scandir(f"{folder}/{inside}") as entries:
            for entry in entries:
                name = f"{inside}{entry.name}"
                if entry.is_symlink():
                    raise EvidenceError(f"{name} in {folder.name} is a link; records hold files only")
                if entry.is_dir():
                    open_folders.append(f"{name}/")
                elif entry.is_file() and name != FILE_NAME:
                    names.append(name)
    return sorted(names)


def seal(folder: Path, facts: dict[str, Any]) -> str:
    """Flush and hash every file, then write the manifest atomically. Returns the manifest's sha256.

    `facts`: study, block, arm, attempt, phase, plan_sha256, env_id, workload_sha256, counters, startup_ms ...
    Raises EvidenceError when the folder is sealed already.
    """
    if is_sealed(folder):
        raise EvidenceError(f"{folder.name} is sealed already; a record is never rewritten")
    files: dict[str, dict[str, Any]] = {}
    for name in list_files(folder):
        path = folder / name
        atomic.sync_file(path)
        files[name] = {"sha256": canonical.sha256_file(path), "size": path.stat().st_size}
    for path in folder.rglob("*"):
        if path.is_dir():
            atomic.sync_folder(path)
    atomic.sync_folder(folder)
    return atomic.write_json(folder / FILE_NAME, {"schema": SCHEMA, **facts, "files": files})


def read(folder: Path) -> dict[str, Any]:
    """The manifest. Raises EvidenceError when it is missing, malformed or of another schema."""
    manifest = canonical.read_json(folder / FILE_NAME)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise EvidenceError(f"{folder.name}/{FILE_NAME} is not of schema {SCHEMA}")
    return manifest


def sha256(folder: Path) -> str:
    """sha256 of the manifest file, which stands for the whole record."""
    return canonical.sha256_file(folder / FILE_NAME)


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise EvidenceError that names every file missing, added or changed since the record was sealed."""
    declared: dict[str, dict[str, Any]] = manifest["files"]
    present = set(list_files(folder))
    problems = [f"{folder.name}/{name} is missing" for name in sorted(declared.keys() - present)]
    problems += [f"{folder.name}/{name} was added" for name in sorted(present - declared.keys())]
    for name in sorted(declared.keys() & present):
        path = folder / name
        if (
            path.stat().st_size != declared[name]["size"]
            or canonical.sha256_file(path) != declared[name]["sha256"]
        ):
            problems.append(f"{folder.name}/{name} was changed")
    if problems:
        raise EvidenceError(f"{problems[0]} after the record was sealed", details=problems)
