"""Compile the kernels once and keep the library: by sources, compiler and flags, safe against other processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from intaglio.compute.native import toolchain
from intaglio.compute.native.toolchain import Compiler, Unit

DEADLINE_S = 240.0
_POLL_S = 0.05


class BuildError(Exception):
    """The library cannot be had here; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class Built:
    """A library on disk. `isas`: instruction sets inside, best first; `dropped`: those the compiler refused."""

    path: Path
    isas: tuple[str, ...]
    dropped: tuple[str, ...]
    compiler: str
    seconds: float
    fresh: bool


def cache_folder() -> Path:
    """Where libraries are kept: $INTAGLIO_CACHE, else the user's cache folder. Raises BuildError without either."""
    named = os.environ.get("INTAGLIO_CACHE")
    if named:
        return Path(named) / "native"
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "intaglio" / "native"
    except RuntimeError as error:  # a user without a home, as in some containers
        raise BuildError(f"there is no cache folder ({error}); set INTAGLIO_CACHE") from error


def build(folder: Path | None = None, deadline_s: float = DEADLINE_S) -> Built:
    """The library for this machine, compiled if it is not kept yet. Raises BuildError."""
    compiler = toolchain.find_compiler()
    if compiler is None:
        raise BuildError(
            "no C++ compiler was found (CXX, c++, g++, clang++); install one for the native kernels"
        )
    units = toolchain.kernel_units()
    target = (folder or cache_folder()) / _key(compiler, units)
    end = time.monotonic() + deadline_s
    try:
        target.mkdir(parents=True, exist_ok=True)
        kept = _kept(target)
        if kept is not None:
            return kept
        with _lock(target / "lock", end):
            return _kept(target) or _compile(target, compiler, units, end)
    except OSError as error:
        raise BuildError(f"the cache folder {target} cannot be used ({error}); set INTAGLIO_CACHE") from error


def is_pending() -> bool:
    """Whether `build` would compile now, which takes seconds to minutes."""
    compiler = toolchain.find_compiler()
    if compiler is None:
        return False
    try:
        return _kept(cache_folder() / _key(compiler, toolchain.kernel_units())) is None
    except BuildError:
        return False


def _key(compiler: Compiler, units: tuple[Unit, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(toolchain.SOURCES.glob("*")):
        if path.suffix in (".h", ".cpp"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr((compiler, toolchain.COMMON, units)).encode())
    return digest.hexdigest()[:32]


def _kept(target: Path) -> Built | None:
    try:
        about = json.loads((target / "about.json").read_text(encoding="utf-8"))
        path = target / about["library"]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != about["sha256"]:
            return None
        return Built(
            path, tuple(about["isas"]), tuple(about["dropped"]), about["compiler"], about["seconds"], False
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def _lock(path: Path, end: float) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # a system without it: the atomic rename alone keeps the result whole
        yield
        return
    with path.open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > end:
                    raise BuildError(f"another process holds {path}; remove it if none is building") from None
                time.sleep(_POLL_S)
        yield


def _compile(target: Path, compiler: Compiler, units: tuple[Unit, ...], end: float) -> Built:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="build-", dir=target) as scratch:
        place = Path(scratch)
        with ThreadPoolExecutor(max_workers=2) as pool:
            done = list(pool.map(lambda unit: _object(compiler, unit, place, end), units))
            isas = tuple(unit.isa for unit, (_, error) in zip(units, done, strict=True) if not error)
            dropped = tuple(unit.isa for unit, (_, error) in zip(units, done, strict=True) if error)
            if "portable" not in isas:
                raise BuildError(f"the compiler failed: {next(error for _, error in done if error)}")
            plain = list(
                pool.map(lambda unit: _object(compiler, unit, place, end), toolchain.plain_units(isas))
            )
        for _, error in plain:
            if error:
                raise BuildError(f"the compiler failed: {error}")
        objects = [str(path) for path, error in (*done, *plain) if not error]
        library = place / "libintaglio.so"
        error = _call([*compiler.command, "-shared", "-pthread", "-o", str(library), *objects], end)
        if error:
            raise BuildError(f"the linker failed: {error}")
        return _keep(target, library, isas, dropped, compiler, time.monotonic() - began)


def _keep(
    target: Path,
    library: Path,
    isas: tuple[str, ...],
    dropped: tuple[str, ...],
    compiler: Compiler,
    seconds: float,
) -> Built:
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    final = target / f"libintaglio-{digest[:16]}.so"
    os.replace(library, final)
    name, took = compiler.version.splitlines()[0], round(seconds, 2)
    about = {
        "library": final.name,
        "sha256": digest,
        "isas": isas,
        "dropped": dropped,
        "compiler": name,
        "seconds": took,
    }
    draft = library.parent / "about.json"
    draft.write_text(json.dumps(about, indent=1), encoding="utf-8")
    os.replace(draft, target / "about.json")
    return Built(final, isas, dropped, name, took, True)


def _object(compiler: Compiler, unit: Unit, place: Path, end: float) -> tuple[Path, str]:
    path = place / f"{unit.name}.o"
    source = str(toolchain.SOURCES / unit.source)
    command = [*compiler.command, *toolchain.COMMON, *unit.flags, "-w", "-c", source, "-o", str(path)]
    return path, _call(command, end)


def _call(command: list[str], end: float) -> str:
    """Run a command. Returns "" or what went wrong."""
    try:
        done = toolchain.run(command, max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not finish before the deadline"
    except OSError as error:
        return f"{command[0]} cannot be run ({error})"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    return (lines[0] if lines else f"{command[0]} returned {done.returncode}")[:300]
