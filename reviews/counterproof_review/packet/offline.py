"""The surroundings of a replay: an empty home, a short environment, no network.

Two walls: the guard inside every Python process (through a start-up file on its path) and, where the machine
grants one, a network namespace of its own, which holds native code too. Which of them stood is recorded.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from counterproof.run import machine_lock

PROBE_SECONDS = 20
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "SYSTEMROOT")
# Only where whoever replays named a folder: compiled kernels, by sources and compiler, are else made anew in the empty home.
_KERNELS = "INTAGLIO_CACHE"
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_PROXY": "*",
    "no_proxy": "*",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_START_UP = "from counterproof_review.packet.guard import install\n\ninstall()\n"
# 192.0.2.1 is set aside for documentation (RFC 5737): nothing answers there even with a network.
_PROBE = (
    "import socket\n"
    "try:\n"
    "    socket.create_connection(('192.0.2.1', 9), timeout=2).close()\n"
    "    print('open')\n"
    "except Exception as error:\n"
    "    print(type(error).__name__)\n"
)


@dataclass(frozen=True)
class Surroundings:
    """How child processes of a replay are started. `namespace`: the prefix that gives them no network."""

    folder: Path
    environment: Mapping[str, str]
    namespace: tuple[str, ...]

    def command(self, *argv: str) -> list[str]:
        """`python argv` under the namespace, if there is one."""
        return [*self.namespace, sys.executable, *argv]

    def describe(self) -> dict[str, str]:
        """What kept the network off, for the record."""
        return {
            "in_process": "audit hook in every Python process",
            "namespace": " ".join(self.namespace[:2]) if self.namespace else "not granted by this machine",
        }


def prepare(folder: Path, models: Path) -> Surroundings:
    """Make home, temporary and start-up folders inside `folder` and the environment that points to them."""
    for name in ("home", "tmp", "guard", "store"):
        (folder / name).mkdir(mode=0o700)
    (folder / "guard" / "sitecustomize.py").write_text(_START_UP, encoding="utf-8")
    kept = {name: os.environ[name] for name in (*_KEPT, _KERNELS) if name in os.environ}
    environment = {
        **kept,
        **_OFFLINE,
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "HF_HOME": str(folder / "home" / "hub"),
        "XDG_CACHE_HOME": str(folder / "home" / "cache"),
        "COUNTERPROOF_STORE": str(folder / "store"),
        "INTAGLIO_MODELS": str(models),
        machine_lock.VARIABLE: _machine_lock(),
        "PYTHONPATH": os.pathsep.join([str(folder / "guard"), *_python_path()]),
    }
    return Surroundings(folder, environment, namespace_prefix())


def namespace_prefix() -> tuple[str, ...]:
    """The command prefix that starts a program without network, or () where this machine grants none."""
    tool = shutil.which("unshare")
    if tool is None:
        return ()
    for options in (("-n", "--"), ("-rn", "--")):
        try:
            done = subprocess.run([tool, *options, "true"], capture_output=True, timeout=PROBE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return ()
        if done.returncode == 0:
            return (tool, *options)
    return ()


def probe(surroundings: Surroundings) -> str:
    """Try to leave the machine from a child as a replay starts it; return what stopped it ("open": nothing)."""
    done = subprocess.run(
        surroundings.command("-c", _PROBE),
        env=dict(surroundings.environment),
        cwd=surroundings.folder,
        capture_output=True,
        text=True,
        timeout=PROBE_SECONDS,
    )
    return done.stdout.strip() or f"the probe failed: {done.stderr.strip()[-200:]}"


def _machine_lock() -> str:
    """The lock that measured runs of this machine share; its usual place hangs on the temporary folder."""
    usual = Path(tempfile.gettempdir()) / "counterproof-machine.lock"
    return os.environ.get(machine_lock.VARIABLE) or str(usual)


def _python_path() -> list[str]:
    """What children need to import the installed packages although their home is empty."""
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if site.ENABLE_USER_SITE:
        paths.append(site.getusersitepackages())
    return [str(Path(p).resolve()) for p in paths]
