"""Whether the native kernels can be used on this machine, by which instruction set, and if not why."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from intaglio.compute.native import build
from intaglio.compute.native.library import Library
from intaglio.compute.native.selftest import failures

ISA_VARIABLE = "INTAGLIO_NATIVE_ISA"
TORCH = "torch"


@dataclass(frozen=True, slots=True)
class Status:
    """`path`: native-<instruction set>, or "torch" with the `reason`. `usable`: what could be forced, best first."""

    path: str
    reason: str
    isa: str = ""
    usable: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    compiler: str = ""
    build_seconds: float = 0.0
    library: Library | None = None


def available() -> bool:
    """Whether the native kernels can be used; builds them if they are not kept yet."""
    return status().library is not None


def status(isa: str | None = None) -> Status:
    """Build or find the library, choose an instruction set and prove it.

    isa: the set to use, "off" for none; default $INTAGLIO_NATIVE_ISA, else the best. Never raises: whatever is in
    the way becomes the reason for the torch path.
    """
    wanted = os.environ.get(ISA_VARIABLE, "") if isa is None else isa
    if wanted == "off":
        return Status(TORCH, f"switched off ({ISA_VARIABLE}=off)")
    try:
        built = build.build()
        library = Library(built.path)
    except (build.BuildError, OSError, AttributeError) as error:
        return Status(TORCH, str(error))
    usable = library.isas()
    known = Status(TORCH, "", "", usable, built.dropped, built.compiler, built.seconds)
    chosen = wanted or usable[0]
    if chosen not in usable:
        return replace(
            known, reason=f"instruction set '{chosen}' cannot be used; usable: {', '.join(usable)}"
        )
    failed = failures(library, chosen)
    if failed:
        return replace(known, reason=f"the self-test of {chosen} failed: {', '.join(failed)}")
    return replace(known, path=f"native-{chosen}", isa=chosen, library=library)
