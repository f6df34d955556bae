"""How many requests an engine may hold: the server's back-pressure."""

from __future__ import annotations

import asyncio
import math
import time

from intaglio.serve.api_error import ApiError

_LONGEST_S = 60


class Places:
    """Counted places for requests: those that run and those that wait. One event loop uses it.

    A place is taken before any work is done for a request, so a flood costs its senders a refusal and no more.
    """

    def __init__(self, running: int, waiting: int) -> None:
        self.running = running
        self.limit = running + waiting
        self.taken = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._pace_s = 0.0  # mean time between two requests that left, while there was a queue
        self._left_at = 0.0

    def take(self, count: int) -> None:
        """Take places. Raises ApiError 400 when there never are so many, 429 when there are too few now."""
        if count > self.limit:
            raise ApiError(
                400,
                f"{count} prompts in one request are more than the {self.limit} this server holds; send fewer",
                code="too_many_prompts",
                param="prompt",
            )
        if self.taken + count > self.limit:
            wait = self.retry_after
            raise ApiError(
                429,
                f"the server holds as many requests as it can; send again in {wait} s",
                code="queue_full",
                headers={"retry-after": str(wait)},
            )
        self.taken += count
        self._empty.clear()

    def give_back(self, count: int = 1) -> None:
        """A request has left."""
        now = time.monotonic()
        if self.taken > self.running and self._left_at:
            self._pace_s += ((now - self._left_at) / count - self._pace_s) / 8
        self._left_at = now
        self.taken -= count
        if self.taken == 0:
            self._empty.set()

    @property
    def retry_after(self) -> int:
        """Whole seconds until about half of the queue will have left, at the latest pace; at least 1."""
        queued = max(0, self.taken - self.running)
        return max(1, min(_LONGEST_S, math.ceil(self._pace_s * queued / 2)))

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until every place is free. False when the time is over first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
