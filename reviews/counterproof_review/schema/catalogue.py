"""All schemas by name, as they are shipped (`counterproof_review/schemas/`) and as they follow from the reader's shapes.

Run `python -m counterproof_review.schema.catalogue` in a checkout to write the shipped files anew after a shape changed.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from counterproof.errors import InputError
from counterproof_review.packet.shape import Shape
from counterproof_review.schema import packet_files, review_files
from counterproof_review.schema.kinds import JsonSchema, compile_shape

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FOLDER = "schemas"
SUFFIX = ".schema.json"


def names() -> list[str]:
    """Every schema's name, sorted."""
    return sorted(_shapes())


def describes(name: str) -> str:
    """Which file or part of a file a schema is about."""
    return _shape(name)[0]


def made(name: str) -> JsonSchema:
    """The schema as it follows from the shapes. Raises InputError for an unknown name."""
    about, shape = _shape(name)
    head = {"$schema": DIALECT, "$id": f"urn:counterproof:schema:{name}", "title": name, "description": about}
    return head | compile_shape(shape)


def text(name: str) -> str:
    """The schema as it is shipped. Raises InputError for an unknown name."""
    _shape(name)
    return resources.files("counterproof_review").joinpath(FOLDER, name + SUFFIX).read_text(encoding="utf-8")


def render(schema: JsonSchema) -> str:
    """A schema as its file holds it."""
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write(folder: Path) -> list[Path]:
    """Write every schema into `folder`; files of schemas that are gone are removed."""
    wanted = {folder / (name + SUFFIX): render(made(name)) for name in names()}
    for path, content in wanted.items():
        path.write_text(content, encoding="utf-8")
    for path in set(folder.glob(f"*{SUFFIX}")) - set(wanted):
        path.unlink()
    return sorted(wanted)


def _shapes() -> dict[str, tuple[str, Shape]]:
    return {**packet_files.shapes(), **review_files.shapes()}


def _shape(name: str) -> tuple[str, Shape]:
    found = _shapes().get(name)
    if found is None:
        raise InputError(f"there is no schema '{name}'", details=[f"there are: {', '.join(names())}"])
    return found


if __name__ == "__main__":
    write(Path(__file__).resolve().parents[1] / FOLDER)
