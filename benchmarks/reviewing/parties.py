"""Three people on one machine who share nothing but a folder for mail: a home, keys, a store and a review folder each.

Every step is a command in a process of its own, with an environment of a few variables. Where the machine grants it,
the reviewer's processes have no network and find an empty folder where the others' homes are.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROLES = ("author", "reviewer", "steward")
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "COUNTERPROOF_MACHINE_LOCK")
_TRY_SECONDS = 20
# Over each folder of $1 (separated by colons) an empty one, for this command alone.
_HIDE = (
    'IFS=:; for f in $1; do mount -t tmpfs -o size=4k none "$f" || exit 71; done; unset IFS; shift; exec "$@"'
)


class StepError(RuntimeError):
    """A command did not end as it should; the message holds the last lines of what it said."""


@dataclass
class Parties:
    """The three of them below `root`. `models`: a folder that the author and the reviewer find models in.

    extra     further variables of single roles
    deadline  the moment (time.monotonic) by which every command must have ended
    """

    root: Path
    models: Path | None
    deadline: float
    extra: dict[str, dict[str, str]] = field(default_factory=dict)

    def home(self, role: str) -> Path:
        return self.root / role

    def review(self, role: str) -> Path:
        return self.home(role) / "review"

    def set_up(self) -> None:
        """Keys of each, a registry signed by the steward, trusted by all, and a review begun."""
        mail = self.root / "mail"
        mail.mkdir(parents=True)
        for role in ROLES:
            self.home(role).mkdir(mode=0o700)
        for role in ROLES:
            self.do(role, "keys", "new", role)
            (mail / f"{role}.public.json").write_text(self.do(role, "keys", "show", role))
        registry = str(mail / "registry.dsse.json")
        self.do("steward", "keys", "registry", "new", "--key", "steward", "--out", registry)
        for role in ("author", "reviewer"):
            public = str(mail / f"{role}.public.json")
            entry = ("--key", "steward", "--public", public, "--role", role)
            self.do("steward", "keys", "registry", "add", registry, *entry)
        steward = json.loads((mail / "steward.public.json").read_text())["keyid"]
        for role in ROLES:
            self.do(role, "keys", "trust", steward)
            self.do(role, "review", "init", str(self.review(role)), "--registry", registry)

    def step(self, role: str, name: str, *arguments: str, to: Sequence[str] = ()) -> str:
        """One step of the review as one party, whose bundle then goes to those in `to`; returns what it printed."""
        said = self.do(role, "review", name, *arguments, "--review", str(self.review(role)))
        bundle = str(self.root / "mail" / f"from-{role}.zip")
        if to:
            self.do(role, "review", "export", bundle, "--review", str(self.review(role)))
        for other in to:
            self.do(other, "review", "import", bundle, "--review", str(self.review(other)))
        return said

    def do(self, role: str, *arguments: str) -> str:
        """`counterproof arguments` as one party; returns its standard output. What it tells goes to `log.txt`.

        Raises StepError when it fails or runs past the deadline.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise StepError(f"out of time before: counterproof {' '.join(arguments)}")
        command = [*self.walls(role), sys.executable, "-P", "-m", "counterproof", *arguments]
        with (self.root / "log.txt").open("a+", encoding="utf-8") as log:
            log.write(f"\n$ {role}: counterproof {' '.join(arguments)}\n")
            log.flush()
            began = log.seek(0, os.SEEK_END)
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=self.environment(role),
                    cwd=self.home(role),
                    timeout=left,
                )
            except subprocess.TimeoutExpired:
                raise StepError(f"out of time in: counterproof {' '.join(arguments)}") from None
            log.write(done.stdout)
            log.seek(began)
            told = log.read()
        if done.returncode != 0:
            last = "\n".join(told.splitlines()[-12:])
            raise StepError(f"counterproof {' '.join(arguments)} ended with code {done.returncode}:\n{last}")
        return done.stdout

    def environment(self, role: str) -> dict[str, str]:
        """The variables of one party."""
        home = self.home(role)
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        models = {"INTAGLIO_MODELS": str(self.models)} if self.models else {}
        own = {
            "HOME": str(home),
            "USER": f"{role}-of-the-review",
            "LOGNAME": f"{role}-of-the-review",
            "COUNTERPROOF_STORE": str(home / "store"),
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        return {**kept, **models, **own, **self.extra.get(role, {})}

    def walls(self, role: str) -> list[str]:
        """What stands before the reviewer's commands: no network, and the others' homes out of sight."""
        if role != "reviewer":
            return []
        others = ":".join(str(self.home(other)) for other in ROLES if other != role)
        return [*namespace(), "sh", "-c", _HIDE, "hide", others] if namespace() else []

    def fork(self, root: Path) -> Parties:
        """The same three at another place, as they stand now; the stores stay behind, which no later step reads."""
        shutil.copytree(self.root, root, symlinks=True, ignore=shutil.ignore_patterns("store", "log.txt"))
        return Parties(root, self.models, self.deadline)


def namespace() -> list[str]:
    """The command that starts a program without network and with mounts of its own; [] where that is not granted."""
    tool = shutil.which("unshare")
    for options in (("-nm",), ("-rnm",)) if tool else ():
        command = [str(tool), *options, "--"]
        if _works([*command, "sh", "-c", "mount -t tmpfs none /mnt"]):
            return command
    return []


def _works(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=_TRY_SECONDS).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def changed_code(repository: Path, target: Path, changes: Mapping[str, tuple[str, str]]) -> str:
    """A copy of the project's code with some text replaced; returns the PYTHONPATH that makes a process use it.

    changes   `{file below the repository: (old, new)}`; the old text must stand there exactly once, else ValueError
    """
    roots = ("platform", "engine", "reviews", "dashboards")
    for name in (*roots, "experiments", "data"):
        shutil.copytree(repository / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in changes.items():
        path = target / name
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{name} holds '{old}' {text.count(old)} times, not once")
        path.write_text(text.replace(old, new), encoding="utf-8")
    return os.pathsep.join(str(target / name) for name in roots)
