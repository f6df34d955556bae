"""What a server bounds, so that a flood, a slow client or a huge body costs its sender and nobody else."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from intaglio.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of one server; sizes in bytes, times in seconds.

    max_body_bytes      largest request body (413 beyond)
    max_queue           most admitted requests without a slot of the engine (429 beyond)
    max_http_requests   most HTTP requests being read or answered at once, streams apart (429 beyond)
    max_prompts         most prompts in one request
    default_max_tokens  output tokens of a chat request that names no limit (less where the context is full)
    request_timeout_s   longest time from admission to the last byte of the answer (504 beyond)
    head_timeout_s      longest time for a request's headers to arrive, from the connection or, on a kept one, from
                        their first byte (408 beyond)
    body_timeout_s      longest time for a body to arrive (408 beyond)
    drain_timeout_s     longest time that requests in flight get to finish on shutdown or swap; what is left then is
                        ended with a typed error and counted
    stall_timeout_s     a step that takes longer than this makes /health say that the engine is stalled
    """

    max_body_bytes: int = 4 << 20
    max_queue: int = 256
    max_http_requests: int = 1024
    max_prompts: int = 128
    default_max_tokens: int = 1024
    request_timeout_s: float = 600.0
    head_timeout_s: float = 20.0
    body_timeout_s: float = 30.0
    drain_timeout_s: float = 30.0
    stall_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("max_queue", "drain_timeout_s") else 1e-3
            if not least <= value < 1e9:
                raise ConfigError(f"{field.name} is {value}; give a positive number", field=field.name)
