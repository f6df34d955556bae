"""Which machine a run was measured on, and of which class: what may be compared within a block and pooled in a study."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from counterproof.errors import EvidenceError
from counterproof.record import canonical
from counterproof.record.store import RunKey

_CLASS = re.compile(
    r"cpu\..+|memory\.total_bytes|os\.machine|gpu\.\d+\.(name|power\.limit|mig\.mode\.current)"
)
_LENGTH = 16


def class_of(identity: Mapping[str, Any]) -> str:
    """The hardware class: a hash over processors, memory and accelerators of an environment's identity fields."""
    fields = {name: value for name, value in identity.items() if _CLASS.fullmatch(name)}
    return canonical.sha256_json(fields)[:_LENGTH]


def machine_name(lock: Path) -> str:
    """A name for this machine that tells nothing else of it: a hash over its id, its host name and the file that
    `run.machine_lock` locks. Partitions of a machine that lock different files count as machines of their own."""
    try:
        own = Path("/etc/machine-id").read_text(encoding="utf-8").strip()
    except OSError:
        own = ""
    return canonical.sha256_json([own, socket.gethostname(), str(lock)])[:_LENGTH]


def placed(events: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Machine and hardware class of each sealed run whose start recorded them."""
    started: dict[str, tuple[str, str]] = {}
    result = {}
    for event in events:
        if event["kind"] == "run_started" and "machine" in event:
            started[event["run"]] = (event["machine"], event["hardware"])
        elif event["kind"] == "run_sealed" and event["run"] in started:
            result[event["run"]] = started[event["run"]]
    return result


def machine_of_block(events: Iterable[Mapping[str, Any]], block: int | None) -> str | None:
    """On which machine a block was begun, None for one without a sealed run that says so."""
    for run, (machine, _) in placed(events).items():
        if block is not None and RunKey.parse(run).block == block:
            return machine
    return None


def check(events: Iterable[Mapping[str, Any]]) -> None:
    """Raise EvidenceError for a block that was measured on several machines or blocks of several hardware classes:
    the one is no comparison within a block, the other would pool different populations."""
    by_block: dict[int, set[str]] = {}
    classes: dict[str, str] = {}
    for run, (machine, hardware) in placed(events).items():
        block = RunKey.parse(run).block
        if block is not None:
            by_block.setdefault(block, set()).add(machine)
        classes.setdefault(hardware, run)
    split = [block for block, machines in sorted(by_block.items()) if len(machines) > 1]
    if split:
        raise EvidenceError(
            f"block {split[0]} was measured on more than one machine, so its arms cannot be compared",
            details=[f"block {block}: {', '.join(sorted(by_block[block]))}" for block in split],
        )
    if len(classes) > 1:
        raise EvidenceError(
            "runs of different hardware classes are never pooled",
            details=[f"{hardware}: first {run}" for hardware, run in classes.items()],
        )
