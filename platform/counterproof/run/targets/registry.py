"""Targets by name. Others are added by installed packages under the entry-point group `counterproof.targets`;
a configuration can name a target but never a piece of code."""

from __future__ import annotations

import importlib.metadata

from counterproof.errors import InputError, SetupError
from counterproof.run.targets.protocol import TargetKind

GROUP = "counterproof.targets"
INTAGLIO_LOCAL = "intaglio_local"
HTTP = "http"
OPENAI = "openai"
OWN = (INTAGLIO_LOCAL, HTTP, OPENAI)


def names() -> list[str]:
    """What `find` knows; nothing is loaded."""
    return [*OWN, *sorted(point.name for point in importlib.metadata.entry_points(group=GROUP))]


def find(name: str) -> TargetKind:
    """The kind of target called `name`. Raises InputError that lists what there is, or SetupError."""
    if name == INTAGLIO_LOCAL:
        from counterproof.run.targets.intaglio_local import IntaglioLocal

        return IntaglioLocal()
    if name in (HTTP, OPENAI):
        from counterproof.run.targets.http.kinds import IntaglioHttp, OpenAiServer

        return IntaglioHttp() if name == HTTP else OpenAiServer()
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in points:
        raise InputError(f"there is no target '{name}'", details=[f"there are: {', '.join(names())}"])
    try:
        kind: TargetKind = points[name].load()()
    except Exception as error:
        raise SetupError(f"the target '{name}' cannot be loaded: {error!r}") from error
    return kind
