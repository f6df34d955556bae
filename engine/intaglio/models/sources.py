"""The list of everything that may be fetched: `data/sources.yaml`, with origin, licence and sha256 of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import intaglio
from intaglio.errors import ModelError

SCHEMA = "counterproof-sources/1"
KINDS = ("model", "data")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a source comes from: a package (`package`, `version`, `file`) or a public repository
    (`repository`, `commit`, `path`). Fields of the other form are empty."""

    package: str = ""
    version: str = ""
    file: str = ""
    repository: str = ""
    commit: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """One thing that may be fetched.

    name     unique; for data its path below the data folder
    origins  one or more; `made` says how the file came from them ("copy" for an unchanged one)
    sha256   of the file itself, `size` its bytes
    member   for an archive: the path of the file inside that is used, with its own sha256 and size
    """

    name: str
    kind: str
    licence: str
    made: str
    sha256: str
    size: int
    origins: tuple[Origin, ...]
    member: str = ""
    member_sha256: str = ""
    member_size: int = 0


def data_root() -> Path:
    """The folder of the project's own data: `data/` in a checkout, `counterproof_data/` beside an installed
    package. Raises ModelError when neither is there."""
    package = Path(intaglio.__file__).resolve().parent
    for candidate in (package.parent / "counterproof_data", package.parent.parent / "data"):
        if (candidate / "sources.yaml").is_file():
            return candidate
    raise ModelError("the project's data folder is missing; reinstall counterproof")


def read_sources(path: Path | None = None) -> dict[str, Source]:
    """Every source by name. Raises ModelError for a missing or unknown field, naming the entry."""
    path = path or data_root() / "sources.yaml"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ModelError(f"{path} is not of schema {SCHEMA}")
    sources = [_source(entry, path) for entry in document.get("sources", [])]
    by_name = {source.name: source for source in sources}
    if len(by_name) != len(sources):
        raise ModelError(f"{path} names a source twice")
    return by_name


def find_source(name: str) -> Source:
    """The source of that name. Raises ModelError, listing the known names."""
    sources = read_sources()
    if name not in sources:
        raise ModelError(f"no source named '{name}'; known: {', '.join(sources)}")
    return sources[name]


def _source(entry: Any, path: Path) -> Source:
    try:
        fields = dict(entry)
        origins = tuple(_origin(row) for row in fields.pop("origins"))
        source = Source(origins=origins, **fields)
    except (TypeError, KeyError, ValueError) as error:
        name = entry.get("name", "?") if isinstance(entry, dict) else "?"
        raise ModelError(f"{path}: source '{name}' is malformed: {error}") from error
    if source.kind not in KINDS or not origins or len(source.sha256) != 64:
        raise ModelError(f"{path}: source '{source.name}' lacks a known kind, an origin or a sha256")
    return source


def _origin(row: dict[str, Any]) -> Origin:
    origin = Origin(**{key: str(value) for key, value in row.items()})
    package = all((origin.package, origin.version, origin.file))
    repository = all((origin.repository, origin.commit, origin.path))
    if package == repository:
        raise ValueError("an origin is either package+version+file or repository+commit+path")
    return origin
