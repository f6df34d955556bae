"""OpenMP threads: how many compute, and whether they spin or sleep while they wait."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from intaglio.config import ThreadsConfig


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


def prepare(config: ThreadsConfig) -> None:
    """Set what OpenMP reads when torch is loaded; without effect once it is."""
    if "torch" not in sys.modules:
        os.environ["OMP_WAIT_POLICY"] = config.wait_policy


def apply(config: ThreadsConfig) -> Threads:
    """Load torch with the wait policy, and set the number of threads.

    Without a count: OMP_NUM_THREADS if the environment has it, else one per usable core.
    """
    prepare(config)
    import torch

    count = config.count or _from_environment() or usable_cores()
    torch.set_num_threads(count)
    policy = os.environ.get("OMP_WAIT_POLICY", "").lower() or "default"
    return Threads(torch.get_num_threads(), policy)


def _from_environment() -> int | None:
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdigit() and int(text) > 0 else None
