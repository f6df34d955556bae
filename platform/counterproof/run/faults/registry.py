"""Faults by name. Others are added by installed packages under the entry-point group `counterproof.faults`: each
entry is a class without arguments that fulfils `fault.Fault`."""

from __future__ import annotations

import importlib.metadata

from counterproof.errors import InputError, SetupError, did_you_mean
from counterproof.run.faults.disk import FullDisk, SlowDisk
from counterproof.run.faults.fault import Fault
from counterproof.run.faults.kills import KillHarness, KillRun, KillServer
from counterproof.run.faults.pool import PoolExhausted
from counterproof.run.faults.surroundings import ClockSet, TrackerUnreachable

GROUP = "counterproof.faults"
_OWN: tuple[type[Fault], ...] = (
    KillRun,
    KillHarness,
    KillServer,
    PoolExhausted,
    SlowDisk,
    FullDisk,
    ClockSet,
    TrackerUnreachable,
)


def all_faults() -> list[Fault]:
    """The project's own and those of installed packages, in that order. Raises SetupError for one that fails to load."""
    found: list[Fault] = [kind() for kind in _OWN]
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name):
        try:
            found.append(point.load()())
        except Exception as error:
            raise SetupError(f"the fault '{point.name}' cannot be loaded: {error!r}") from error
    return found


def choose(names: list[str]) -> list[Fault]:
    """The faults of these names, all for none. Raises InputError that lists what there is."""
    known = {fault.name: fault for fault in all_faults()}
    for name in names:
        if name not in known:
            raise InputError(
                f"there is no fault '{name}'",
                details=[*did_you_mean(name, known), f"there are: {', '.join(known)}"],
            )
    return [known[name] for name in names] if names else list(known.values())
