"""Which code a packet was measured with, and which code is installed here."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterproof.record.code_identity import identify

PACKAGES = ("counterproof", "intaglio")
DISTRIBUTION = "counterproof"
_SUFFIXES = (".py", ".yaml", ".json", ".c", ".cpp", ".h")


def installed() -> dict[str, Any]:
    """`{package: {version, tree_sha256}}` of the packages that run a packet, from their files alone.

    The tree digest covers source files by path and content, so a checkout and a wheel of it are equal.
    """
    version = importlib.metadata.version(DISTRIBUTION)
    return {name: {"version": version, "tree_sha256": _tree(name)} for name in PACKAGES}


def lock(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The code lock of a study. Tree digests only where the code here is the one that was measured."""
    code = plan.get("code") or {}
    source = {key: code.get(key) for key in ("kind", "sha", "dirty_sha256", "lock_sha256")}
    here = identify()
    same = (here.sha, here.dirty_sha256) == (code.get("sha"), code.get("dirty_sha256"))
    return {"source": source, "packages": installed() if same else {}}


def differences(document: Mapping[str, Any]) -> list[str]:
    """In what the code here differs from a packet's lock, one sentence each; empty when it is the same."""
    locked, here = document["packages"], installed()
    if not locked:
        return ["the packet does not say which files were measured, only the commit: code cannot be compared"]
    found = []
    for name, facts in here.items():
        stated = locked.get(name)
        if not isinstance(stated, Mapping):
            found.append(f"{name}: not in the packet's lock")
        elif stated.get("tree_sha256") != facts["tree_sha256"]:
            found.append(
                f"{name}: other code (version {stated.get('version')} there, {facts['version']} here)"
            )
    return found


def _tree(package: str) -> str:
    digest = hashlib.sha256()
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or []) if spec else []:
        base = Path(place)
        for path in sorted(base.rglob("*"), key=lambda p: p.relative_to(base).as_posix()):
            if path.suffix in _SUFFIXES and path.is_file() and "__pycache__" not in path.parts:
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{path.relative_to(base).as_posix()} {content}\n".encode())
    return digest.hexdigest()
