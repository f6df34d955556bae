"""A deadline for the head of a request, which uvicorn has none for.

Without one, a client that sends its headers a byte at a time, or never sends any, holds a connection for ever
("slow loris"). Bodies, answers and idle kept connections have deadlines of their own (see limits.py and server.py).
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from intaglio.serve.api_error import ApiError
from intaglio.serve.metrics import ServerMetrics


def protocol(timeout_s: float, metrics: ServerMetrics) -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 protocol with a deadline: a whole head within `timeout_s` of the connection or, on a kept
    one, of the head's first byte; otherwise 408 (nothing where not a byte came) and the end of the connection, counted.
    """

    class HeadDeadline(H11Protocol):
        """One connection."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """A client connected: its first head is awaited."""
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            """Bytes arrived: a whole head ends the wait, a part of one does not prolong it."""
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            """The next head may have arrived in part behind the last request."""
            super().on_response_complete()
            if self.conn.trailing_data[0]:
                self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            """The client left."""
            self._rest()
            super().connection_lost(exc)

        def _look(self) -> None:
            # IDLE: h11 has not seen a whole head of the next request.
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                self._await_head()
            else:
                self._rest()

        def _await_head(self) -> None:
            if self._late is None:
                self._late = self.loop.call_later(timeout_s, self._give_up)

        def _rest(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _give_up(self) -> None:
            self._late = None
            metrics.late_heads += 1
            if self.conn.trailing_data[0]:
                self.transport.write(_refusal(self.conn, timeout_s))
            self.transport.close()

    return HeadDeadline


def _refusal(connection: h11.Connection, timeout_s: float) -> bytes:
    error = ApiError(
        408,
        f"the request's headers did not arrive within {timeout_s:g} s; send them at once",
        code="head_timeout",
    )
    body = bytes(error.response().body)
    headers = [
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("connection", "close"),
    ]
    parts = (
        connection.send(h11.Response(status_code=408, headers=headers, reason=b"Request Timeout")),
        connection.send(h11.Data(data=body)),
        connection.send(h11.EndOfMessage()),
    )
    return b"".join(part or b"" for part in parts)
