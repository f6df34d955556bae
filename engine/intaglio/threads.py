"""OpenMP threads: how many compute, and whether they spin or sleep while they wait."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from intaglio.config import ThreadsConfig
from intaglio.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Threads:
    """What is really in force. wait_policy is what the process had when torch was loaded."""

    count: int
    wait_policy: str


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def pin(cores: set[int]) -> None:
    """Let this process run on these cores alone: its threads of now, and those that they start.

    Raises ConfigError for a core that is not there or not allowed, or where the system cannot do it.
    """
    reason = "this system cannot bind threads to cores"
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, cores)
            if os.sched_getaffinity(0) == cores:
                _pin_others(cores)
                return
            os.sched_setaffinity(0, before)
        except OSError:
            pass
        reason = f"this process cannot use all of the cores {','.join(map(str, sorted(cores)))}"
    raise ConfigError(f"{reason}; give threads.affinity other cores, or null", field="threads.affinity")


def _pin_others(cores: set[int]) -> None:
    """Threads that importing libraries has started already."""
    tasks = Path("/proc/self/task")
    for task in tasks.iterdir() if tasks.is_dir() else ():
        with contextlib.suppress(OSError):  # it has just ended
            os.sched_setaffinity(int(task.name), cores)


def prepare(config: ThreadsConfig) -> None:
    """Set what OpenMP reads when torch is loaded; without effect once it is."""
    if "torch" not in sys.modules:
        os.environ["OMP_WAIT_POLICY"] = config.wait_policy


def apply(config: ThreadsConfig) -> Threads:
    """Load torch with the wait policy, and set the number of threads.

    Raises ConfigError where threads.affinity names a core that this process may not use. Without a count: OMP_NUM_THREADS if the environment has it, else one per usable core.
    """
    prepare(config)
    if config.affinity is not None:
        pin({int(core) for core in config.affinity.split(",")})
    import torch

    count = config.count or _from_environment() or usable_cores()
    torch.set_num_threads(count)
    policy = os.environ.get("OMP_WAIT_POLICY", "").lower() or "default"
    return Threads(torch.get_num_threads(), policy)


def _from_environment() -> int | None:
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdigit() and int(text) > 0 else None
