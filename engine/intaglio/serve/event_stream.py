"""A streamed answer: server-sent events, in OpenAI's use of them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from intaglio.serve.api_error import ApiError
from intaglio.serve.departure import unless_gone
from intaglio.serve.generation import Generation

_log = logging.getLogger("intaglio.serve")
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventStream(Response):
    """Sends documents as they come, then [DONE]. An error after the first byte becomes a last event.

    The generation has been entered before and is left here, whatever happens: end, departure, error, deadline.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        documents: AsyncIterator[dict[str, Any]],
        on_departure: Callable[[], None],
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._generation = generation
        self._documents = documents
        self._on_departure = on_departure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send it (ASGI)."""
        try:
            await unless_gone(receive, self._send(send))
        except (ClientDisconnect, OSError):
            self._on_departure()
        finally:
            self._generation.close()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        # A client that reads too slowly is held to the same deadline as the generation itself.
        try:
            async with asyncio.timeout_at(self._generation.deadline + 1.0):
                async for document in self._documents:
                    await _event(send, json.dumps(document, separators=(",", ":")))
                await _event(send, "[DONE]", last=True)
        except TimeoutError:
            raise ClientDisconnect from None
        except ApiError as error:
            await _event(send, json.dumps(error.body))
            await _event(send, "[DONE]", last=True)
        except (ClientDisconnect, OSError):
            raise
        except Exception:
            _log.exception("a stream failed")
            failed = ApiError(500, "the answer failed; send the request again", code="internal")
            await _event(send, json.dumps(failed.body), last=True)


async def _event(send: Send, data: str, *, last: bool = False) -> None:
    body = f"data: {data}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": not last})
