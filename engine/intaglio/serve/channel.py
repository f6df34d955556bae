"""How events cross from the engine's thread to an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from intaglio.intake.request import RequestOutput, TokenEvent


class Update(NamedTuple):
    """One event, and with a request's last event its whole output."""

    event: TokenEvent
    output: RequestOutput | None


class Channel:
    """The updates of the requests of one HTTP request, in order. Everything but `post` runs on the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._updates: deque[Update] = deque()
        self._filled = asyncio.Event()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of whoever reads."""
        return self._loop

    def put(self, update: Update) -> None:
        """Add an update."""
        self._updates.append(update)
        self._filled.set()

    async def get(self) -> Update:
        """The next update, waiting for it."""
        while not self._updates:
            self._filled.clear()
            await self._filled.wait()
        return self._updates.popleft()


def post(updates: Iterable[tuple[Channel, Update]]) -> int:
    """Hand a step's updates over from any thread, with one wake-up per loop. Returns how many found no loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Channel, Update]]] = {}
    for channel, update in updates:
        by_loop.setdefault(channel.loop, []).append((channel, update))
    lost = 0
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, batch)
        except RuntimeError:  # the loop has ended, and its readers with it
            lost += len(batch)
    return lost


def _put_all(batch: list[tuple[Channel, Update]]) -> None:
    for channel, update in batch:
        channel.put(update)
