"""Our own check of a crate: what the specification asks of every crate, and that files are what the metadata says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from counterproof_review.crate.graph import METADATA, ROOT, SPECIFICATION

_ROOT_NEEDS = ("name", "description", "datePublished", "license")
_ELSEWHERE = ("https://", "http://", "urn:")


def faults(folder: Path) -> list[str]:
    """What is wrong with the crate in `folder`, in words; empty when nothing is."""
    try:
        document = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [f"{METADATA} cannot be read: {error}"]
    graph = document.get("@graph") if isinstance(document, dict) else None
    if not isinstance(graph, list) or not all(isinstance(e, dict) and "@id" in e for e in graph):
        return ["@graph is no list of entities with an @id"]
    entities = {str(entity["@id"]): entity for entity in graph}
    found = [] if len(entities) == len(graph) else ["two entities have the same @id"]
    found += _head(document, entities)
    found += [f"{one} is named but not described" for one in sorted(_references(graph) - set(entities))]
    parts = [str(part["@id"]) for part in entities.get(ROOT, {}).get("hasPart", [])]
    found += _parts(folder, parts, entities)
    return found


def _head(document: Mapping[str, Any], entities: Mapping[str, Any]) -> Iterator[str]:
    context = document.get("@context")
    named = context if isinstance(context, list) else [context]
    if f"{SPECIFICATION}/context" not in named:
        yield "the context is not RO-Crate's"
    descriptor = entities.get(METADATA, {})
    if descriptor.get("about") != {"@id": ROOT} or descriptor.get("conformsTo") != {"@id": SPECIFICATION}:
        yield "the descriptor is missing, or not about the root"
    root = entities.get(ROOT, {})
    if root.get("@type") != "Dataset":
        yield "there is no root dataset"
    for name in _ROOT_NEEDS:
        if not root.get(name):
            yield f"the root has no {name}"
    for identifier, entity in entities.items():
        if "@type" not in entity:
            yield f"{identifier} has no @type"


def _references(value: Any) -> set[str]:
    """Every `{"@id": x}` inside the graph that points into the crate."""
    found: set[str] = set()
    for inner in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        if isinstance(inner, dict) and set(inner) == {"@id"}:
            found.add(str(inner["@id"]))
        else:
            found |= _references(inner)
    return {one for one in found if not one.startswith(_ELSEWHERE)}


def _parts(folder: Path, parts: list[str], entities: Mapping[str, Any]) -> Iterator[str]:
    if len(set(parts)) != len(parts):
        yield "hasPart names a file twice"
    described = {name for name, entity in entities.items() if entity.get("@type") == "File"}
    for name in sorted(described ^ set(parts)):
        yield f"{name} is not both described and part of the root"
    for name in sorted(described & set(parts)):
        path = folder / unquote(name)
        if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):
            yield f"{name} is not in the crate"
            continue
        data, entity = path.read_bytes(), entities[name]
        if entity.get("sha256") != hashlib.sha256(data).hexdigest():
            yield f"{name} has another SHA-256"
        if entity.get("contentSize") != str(len(data)):
            yield f"{name} has another size"
        if not entity.get("encodingFormat"):
            yield f"{name} has no encodingFormat"
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    for name in sorted(there - {METADATA} - {unquote(part) for part in parts}):
        yield f"{name} lies in the crate but is not part of it"
