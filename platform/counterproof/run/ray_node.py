"""What a Ray node does for a study: say what it is, and measure one run in processes of its own.

Plain functions of plain values (bytes, numbers, text): nothing of a study is trusted to be at the same path there,
and what comes back is files with their hashes. They are imported on the node from its own installation, whose code
identity the study checks before it sends a run there.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path
from typing import Any

from counterproof.errors import CounterproofError
from counterproof.record import canonical
from counterproof.run.machine_lock import machine_lock
from counterproof.run.site import LocalSite
from counterproof.run.spec import RunSpec
from intaglio.config import EngineConfig, ThreadsConfig, from_flat

# Fields of a run's spec that name a file with its requests.
FILES = ("workload", "warmup", "duplicates")


def survey(target: str, engine: dict[str, Any]) -> dict[str, Any]:
    """The node's identity: {"machine", "nice", "hardware", "common"}, or {"error": why it cannot tell}."""
    here = LocalSite()
    try:
        common = here.common(target, from_flat(engine, EngineConfig()))
    except CounterproofError as error:
        return {"error": "; ".join([str(error), *error.details])}
    return {
        "machine": here.machine,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "hardware": here.hardware(common),
        "common": common,
    }


def measure(
    spec: dict[str, Any], files: dict[str, bytes], threads: dict[str, Any], deadline_s: float
) -> dict[str, Any]:
    """Measure one run, alone on this machine.

    spec     fields of `RunSpec`; those in FILES name entries of `files`
    Returns {"files": {name: bytes}, "sha256": {name: hash}, "error": None or {"code", "message", "details"}}: whatever
    the run left, also when it failed.
    """
    with tempfile.TemporaryDirectory(prefix="counterproof-node-") as place:
        folder = Path(place) / "run"
        folder.mkdir()
        for name, data in files.items():
            (Path(place) / Path(name).name).write_bytes(data)
        given = {field: str(Path(place) / Path(spec[field]).name) for field in FILES if spec.get(field)}
        own = RunSpec(**{**spec, **given, "folder": str(folder)})
        error = None
        try:
            with machine_lock():
                LocalSite().execute(own, ThreadsConfig(**threads), deadline_s, _say_nothing)
        except CounterproofError as caught:
            error = {"code": caught.exit_code, "message": str(caught), "details": caught.details}
        return {**ship(folder), "error": error}


def ship(folder: Path) -> dict[str, Any]:
    """Every file under a folder, as bytes and with its hash."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return {"files": files, "sha256": {name: canonical.sha256_file(folder / name) for name in files}}


def request_files(spec: RunSpec) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A spec's fields with its files named by content's place only, and those files' bytes."""
    fields = dataclasses.asdict(spec)
    files: dict[str, bytes] = {}
    for field in FILES:
        path = Path(fields.get(field) or "")
        if path.is_file():
            files[path.name] = path.read_bytes()
            fields[field] = path.name
    return fields, files


def _say_nothing(_done: int, _total: int) -> None:
    return None
