"""The metadata file of a crate: RO-Crate 1.2, one flat JSON-LD graph whose entities name each other by `@id`.

Source: RO-Crate Metadata Specification 1.2 (descriptor, root data entity, data entities, contextual entities).
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

from counterproof.errors import InputError
from counterproof.record import atomic
from counterproof_review.crate.sources import Part, Source
from counterproof_review.schema import catalogue

METADATA = "ro-crate-metadata.json"
SPECIFICATION = "https://w3id.org/ro/crate/1.2"
CONTEXT = [f"{SPECIFICATION}/context", {"sha256": "https://schema.org/sha256"}]
ROOT, CLAIM, VERDICT, LICENSE = "./", "#claim", "#verdict", "#license"
NO_LICENSE = "No licence is stated. Ask the author before using the files otherwise than for a replication."

Entity = dict[str, Any]


def write(source: Source, target: Path, date: str, license_url: str | None = None) -> Path:
    """Write files and metadata into `target`, a folder that is empty or not there; returns the metadata's path.

    date   ISO 8601 day of publication, used where the source itself tells none
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is not an empty folder; name another one")
    target.mkdir(parents=True, exist_ok=True)
    for name, part in source.parts.items():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(part.content, bytes):
            place.write_bytes(part.content)
        else:
            shutil.copyfile(part.content, place)
    atomic.write_json(target / METADATA, document(source, date, license_url))
    return target / METADATA


def document(source: Source, date: str, license_url: str | None = None) -> dict[str, Any]:
    """The content of ro-crate-metadata.json."""
    files = [_file(name, part) for name, part in sorted(source.parts.items())]
    schemas = sorted({part.schema for part in source.parts.values() if part.schema})
    licence = license_url or LICENSE
    root: Entity = {
        "@id": ROOT,
        "@type": "Dataset",
        "name": source.name,
        "description": source.description,
        "identifier": source.identifier,
        "datePublished": source.date or date,
        "license": _ref(licence),
        "hasPart": [_ref(entity["@id"]) for entity in files],
        "mentions": [_ref(CLAIM), _ref(VERDICT)],
    }
    graph = [
        {
            "@id": METADATA,
            "@type": "CreativeWork",
            "about": _ref(ROOT),
            "conformsTo": _ref(SPECIFICATION),
        },
        root,
        *files,
        *_claim(source),
        *_verdict(source),
        *(_person(*one) for one in source.people),
        *(_schema(name) for name in schemas),
        _licence(licence),
    ]
    return {"@context": CONTEXT, "@graph": graph}


def _ref(identifier: str) -> dict[str, str]:
    return {"@id": identifier}


def _file(name: str, part: Part) -> Entity:
    digest, size = _measure(part)
    entity: Entity = {
        "@id": quote(name),
        "@type": "File",
        "name": name,
        "contentSize": str(size),
        "sha256": digest,
        "encodingFormat": part.media_type,
    }
    return entity | {"conformsTo": _ref(_urn(part.schema))} if part.schema else entity


def _measure(part: Part) -> tuple[str, int]:
    if isinstance(part.content, bytes):
        return hashlib.sha256(part.content).hexdigest(), len(part.content)
    with part.content.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest(), part.content.stat().st_size


def _claim(source: Source) -> list[Entity]:
    values = _values(CLAIM, source.claim)
    head: Entity = {
        "@id": CLAIM,
        "@type": "Claim",
        "name": f"What is claimed about {source.claim['metric']}",
        "identifier": f"sha256:{source.claim['plan_sha256']}",
        "additionalProperty": [_ref(value["@id"]) for value in values],
    }
    return [head, *values]


def _verdict(source: Source) -> list[Entity]:
    values = _values(VERDICT, source.numbers)
    rating = {
        "@id": f"{VERDICT}-value",
        "@type": "Rating",
        "name": "Verdict of the replication",
        "ratingValue": source.verdict,
    }
    head: Entity = {
        "@id": VERDICT,
        "@type": "Review",
        "name": source.verdict,
        "itemReviewed": _ref(CLAIM),
        "reviewBody": source.reason,
        "reviewRating": _ref(rating["@id"]),
        "author": [_ref(_key(keyid)) for _, role, keyid in source.people if role != "author"],
        "additionalProperty": [_ref(value["@id"]) for value in values],
    }
    return [{name: value for name, value in head.items() if value != []}, rating, *values]


def _values(owner: str, properties: Any) -> list[Entity]:
    return [
        {
            "@id": f"{owner}-{name.replace(' ', '-')}",
            "@type": "PropertyValue",
            "name": name,
            "value": value,
        }
        for name, value in properties.items()
        if value is not None
    ]


def _person(name: str, role: str, keyid: str) -> Entity:
    return {
        "@id": _key(keyid),
        "@type": "Person",
        "name": name,
        "identifier": keyid,
        "description": f"registered as {role}; identifier is the SHA-256 of the public signing key",
    }


def _key(keyid: str) -> str:
    return f"#key-{keyid[:16]}"


def _urn(schema: str) -> str:
    return f"urn:counterproof:schema:{schema}"


def _schema(name: str) -> Entity:
    return {
        "@id": _urn(name),
        "@type": "CreativeWork",
        "name": f"JSON Schema {name}",
        "description": f"{catalogue.describes(name)}; printed by: counterproof packet schema {name}",
    }


def _licence(identifier: str) -> Entity:
    text = NO_LICENSE if identifier == LICENSE else "The licence under which the files may be used."
    return {"@id": identifier, "@type": "CreativeWork", "name": "Licence", "description": text}
