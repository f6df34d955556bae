"""What a section hands back: checks that passed or failed and figures that were measured, one JSON line each."""

from __future__ import annotations

import json
from pathlib import Path


class Report:
    """Appends lines to a file, so that what was done before a deadline is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, name: str, passed: object, **values: object) -> None:
        """A statement that must hold, and the numbers it rests on."""
        self._write({"kind": "check", "name": name, "passed": bool(passed), **values})

    def figure(self, name: str, value: float, unit: str, **context: object) -> None:
        """Something measured on this device, which no threshold judges."""
        self._write({"kind": "figure", "name": name, "value": value, "unit": unit, **context})

    def _write(self, line: dict[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[dict[str, object]]:
    """The whole lines of a report; one that a kill cut short is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]
