"""Which studies of a server can be replayed from a packet: those whose server anybody can start from the packet alone.

A packet holds an engine's configuration and requests with their arrival times. `intaglio serve` needs no more, so a
study of the target `http` is replayed through it, on the loopback, which stays open where the network is off. A server
that ran already, another one's command, or another way to speak to it is none of the packet's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from counterproof.errors import InputError
from counterproof.plan.schema import ServerConfig
from counterproof.run.targets.registry import HTTP, OPENAI

_PREFIX = "server."
# What `intaglio serve` is sent and what it is asked, the same with any of these.
_FREE = ("effective_path", "metrics_path", "ready_s", "stop_s")
_FIX = (
    "measure the same change with target=intaglio_local, or with target=http and server=intaglio as they are"
)


def check(plan: Mapping[str, Any]) -> None:
    """Raise InputError, naming the fields and what to do, for a study whose server a packet cannot bring along."""
    target = plan.get("target")
    if target == OPENAI:
        raise InputError(
            "a study of the target openai cannot be replayed from a packet: its server is not in it",
            details=[_FIX],
        )
    if target != HTTP:
        return
    plain = dataclasses.asdict(ServerConfig())
    config: Mapping[str, Any] = plan["arms"]["baseline"]["config"]
    given = {
        path: value
        for path, value in config.items()
        if path.startswith(_PREFIX) and path.removeprefix(_PREFIX).split(".")[0] not in _FREE
    }
    other = [path for path, value in sorted(given.items()) if value != plain.get(path.removeprefix(_PREFIX))]
    if other:
        raise InputError(
            f"a packet replays `intaglio serve` as it is, and this study set {', '.join(other)}",
            details=[_FIX],
        )
