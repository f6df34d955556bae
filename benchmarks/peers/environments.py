"""One virtual environment a peer, made whole or recorded as not to be had, with the reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.peers import catalogue
from benchmarks.peers.catalogue import Peer

RECORD = "peer.json"
SCHEMA = "counterproof-peer/1"
_TIMEOUT_S = 5400.0


@dataclass(slots=True)
class Record:
    """What stands in a peer's folder. `prepared`: files by dtype, below the root; `missing`: reasons by dtype."""

    name: str
    installed: bool
    reason: str = ""
    requirements: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    prepared: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA


class StepError(Exception):
    """A command failed; the text is its last words."""


def read_record(root: Path, name: str) -> Record | None:
    """The record of a peer, or None when it was never set up."""
    path = root / name / RECORD
    return Record(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def write_record(root: Path, record: Record) -> None:
    """Put the record in the peer's folder, whole."""
    path = root / record.name / RECORD
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(record), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    part.replace(path)


def install(root: Path, peer: Peer, *, jobs: int, again: bool = False) -> Record:
    """Install a peer unless its pinned versions are there already. Never raises for a failed installation."""
    wanted = list(peer.packages) + ([catalogue.TORCH] if peer.torch else [])
    before = read_record(root, peer.name)
    if before and before.installed and before.requirements == wanted and not again:
        print(f"{peer.name}: already installed")
        return before
    record = Record(peer.name, installed=False, requirements=wanted)
    try:
        build = peer.build | {"CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
        _make(root, peer.name, peer.packages, torch=peer.torch, build=build, removed=peer.removed)
        record.versions = _versions(root, peer.name)
        record.installed = True
    except StepError as error:
        record.reason = str(error)
        print(f"{peer.name}: NOT installed: {error}")
    write_record(root, record)
    return record


def install_tools(root: Path, peer: Peer, *, again: bool = False) -> Path:
    """The interpreter of the environment that converts a peer's models. Raises StepError."""
    name = f"{peer.name}-export"
    done = root / name / "requirements.json"
    if again or not done.is_file() or json.loads(done.read_text(encoding="utf-8")) != list(peer.tools):
        _make(root, name, peer.tools, torch=True, build={}, removed=peer.removed)
        done.write_text(json.dumps(list(peer.tools)), encoding="utf-8")
    return catalogue.python_of(root, name)


def _make(
    root: Path,
    name: str,
    packages: tuple[str, ...],
    *,
    torch: bool,
    build: dict[str, str],
    removed: tuple[str, ...],
) -> None:
    folder = root / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run([sys.executable, "-m", "venv", str(folder)], f"{name}: making the environment")
    python = str(catalogue.python_of(root, name))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    environment = os.environ | build
    if torch:
        # alone and first: where the CPU build is not to be had, nothing may fetch another one
        try:
            run([*pip, "--only-binary", ":all:", catalogue.TORCH], f"{name}: {catalogue.TORCH}", environment)
        except StepError as error:
            raise StepError(
                f"pip's sources have no CPU build of torch ({catalogue.TORCH}): {error}"
            ) from error
        constraints = folder / "constraints.txt"
        constraints.write_text(catalogue.TORCH + "\n", encoding="utf-8")
        pip += ["--constraint", str(constraints)]
    run([*pip, *packages], f"{name}: {', '.join(packages)}", environment)
    if torch and removed:
        run(
            [python, "-m", "pip", "uninstall", "--quiet", "--yes", *removed],
            f"{name}: removing {', '.join(removed)}",
        )


def _versions(root: Path, name: str) -> dict[str, str]:
    python = str(catalogue.python_of(root, name))
    listed = run([python, "-m", "pip", "list", "--format", "json"], f"{name}: listing versions")
    return {entry["name"]: entry["version"] for entry in json.loads(listed)}


def run(command: list[str], title: str, environment: dict[str, str] | None = None) -> str:
    """Run a command at the lowest priority, saying what and how long. Returns its output; raises StepError."""
    print(f"{title} ...", end=" ", flush=True)
    began = time.monotonic()
    try:
        done = subprocess.run(
            ["nice", "-n", "19", *command],
            capture_output=True,
            text=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print("failed")
        raise StepError(f"{Path(command[0]).name}: {type(error).__name__}") from error
    print(f"{'done' if done.returncode == 0 else 'failed'} in {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode != 0:
        raise StepError(_last_words(done.stderr or done.stdout))
    return done.stdout


def _last_words(text: str) -> str:
    """The last line that says something; an error line where there is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "WARNING" not in line]
    errors = [line for line in lines if line.lower().startswith("error") or "Error" in line]
    return (errors or lines or ["it gave no reason"])[-1][:300]
