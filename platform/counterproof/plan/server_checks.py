"""What is refused of a server target at registration: how it is reached, and what cannot be measured over HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterator

from counterproof.plan.schema import ExperimentConfig, ServerConfig

SERVERS = ("http", "openai")
APIS = ("completions", "chat")
PROMPTS = ("tokens", "text")
DIALECTS = ("openai", "extended")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
# What only the engine's own process shows, and what only a client of a server sees.
INSIDE = ("itl_ms", "kv_bytes_peak")
OUTSIDE = ("inter_chunk_ms",)


def server_faults(config: ExperimentConfig) -> Iterator[str]:
    """Every fault, with the field and what it must be."""
    metrics = [config.primary.metric, *(rail.metric for rail in config.guardrails)]
    if config.target not in SERVERS:
        for metric in metrics:
            if metric in OUTSIDE:
                yield f"{metric} is what a server's client sees; the target {config.target} has itl_ms"
        return
    for metric in metrics:
        if metric in INSIDE:
            yield f"{metric} cannot be measured over HTTP; for times between pieces there is inter_chunk_ms"
    yield from _reached(config.server, config.target)
    yield from _spoken(config.server)
    if config.target == "openai" and config.study.equivalence_requests:
        yield "study.equivalence_requests must be 0 with the target openai: a server shows no logits to compare"


def _reached(server: ServerConfig, target: str) -> Iterator[str]:
    if server.base_url is not None and server.command:
        yield "server.base_url and server.command exclude each other: attach to a server, or start one"
    if target == "openai" and server.base_url is None and not server.command:
        yield "the target openai needs server.base_url (a server that runs) or server.command (one to start)"
    if server.key_variable is not None and not _VARIABLE.fullmatch(server.key_variable):
        yield "server.key_variable must be the name of an environment variable, never the key itself"
    for entry in server.variables:
        if not _VARIABLE.fullmatch(entry.partition("=")[0]) or "=" not in entry:
            yield "server.variables must be NAME=VALUE entries"
    if not (0 < server.ready_s <= 86_400 and 0 <= server.stop_s <= 3_600):
        yield "server.ready_s must be positive and server.stop_s not negative"


def _spoken(server: ServerConfig) -> Iterator[str]:
    for name, value, known in (
        ("api", server.api, APIS),
        ("prompts", server.prompts, PROMPTS),
        ("dialect", server.dialect, DIALECTS),
    ):
        if value not in known:
            yield f"server.{name} must be one of {', '.join(known)}, not '{value}'"
