"""Which code runs: a git commit plus what was changed since, or the hashes of the installed files."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import SetupError
from counterproof.record import canonical

PACKAGES = (
    "counterproof",
    "intaglio",
    "counterproof_review",
    "counterproof_dashboard",
    "counterproof_experiments",
)
GIT_SECONDS = 60.0


@dataclass(frozen=True)
class CodeIdentity:
    """`kind` git: `sha` is the commit, `dirty_sha256` covers every uncommitted change ("" when clean).
    `kind` files: `sha` is over all installed files, and nothing can be dirty."""

    kind: str
    sha: str
    dirty_sha256: str = ""
    dirty_files: tuple[str, ...] = ()
    lock_sha256: str = ""

    @property
    def dirty(self) -> bool:
        return bool(self.dirty_files)

    def as_dict(self) -> dict[str, Any]:
        """What plan and environment record."""
        return {
            "kind": self.kind,
            "sha": self.sha,
            "dirty": self.dirty,
            "dirty_sha256": self.dirty_sha256,
            "lock_sha256": self.lock_sha256,
        }


def identify(start: Path | None = None) -> CodeIdentity:
    """Identity of the code beside `start` (default: this package). Raises SetupError when git fails midway."""
    here = start or Path(__file__).resolve().parents[1] / "__init__.py"
    root = _checkout(here)
    lock = installed_sha256()
    if root is None:
        return CodeIdentity("files", f"files:{_files_sha256()}", lock_sha256=lock)
    commit = _git(root, "rev-parse", "HEAD").decode().strip()
    names = _changed(root)
    digest = _dirty_sha256(root) if names else ""
    return CodeIdentity("git", commit, digest, names, lock)


def installed_sha256() -> str:
    """sha256 over `name==version` of every installed distribution: the lock of what really is there."""
    pairs = {
        f"{(dist.metadata['Name'] or '').lower().replace('_', '-')}=={dist.version}"
        for dist in importlib.metadata.distributions()
    }
    return canonical.sha256_bytes("\n".join(sorted(pairs)).encode())


def _checkout(here: Path) -> Path | None:
    """The top of the git checkout that tracks `here`, or None."""
    folder = here if here.is_dir() else here.parent
    top = _try_git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    root = Path(top.decode().strip())
    # A package installed under an ignored folder of some checkout does not belong to it.
    if here.is_file() and _try_git(root, "ls-files", "--error-unmatch", str(here)) is None:
        return None
    if _try_git(root, "rev-parse", "--verify", "HEAD") is None:
        return None
    return root


def _changed(root: Path) -> tuple[str, ...]:
    raw = _git(root, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
    return tuple(sorted(entry.decode(errors="replace") for entry in raw.split(b"\0") if entry))


def _dirty_sha256(root: Path) -> str:
    diff = _git(root, "diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--no-renames")
    untracked = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
    files: dict[str, str] = {}
    for entry in sorted(filter(None, untracked.split(b"\0"))):
        name = os.fsdecode(entry)
        path = root / name
        files[name] = canonical.sha256_file(path) if path.is_file() else "not a file"
    return canonical.sha256_json({"diff": canonical.sha256_bytes(diff), "untracked": files})


def _files_sha256() -> str:
    files: dict[str, str] = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            base = Path(place)
            for path in sorted(base.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    files[f"{package}/{path.relative_to(base).as_posix()}"] = canonical.sha256_file(path)
    return canonical.sha256_json(files)


def _try_git(folder: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _git(folder: Path, *arguments: str) -> bytes:
    output = _try_git(folder, *arguments)
    if output is None:
        raise SetupError(
            f"git {arguments[0]} failed in the checkout, so the code cannot be identified",
            details=["try 'git status' there"],
        )
    return output
