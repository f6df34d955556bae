"""The known delay of the `slowed` arm for a server that cannot be slowed itself: its pieces are held back.

The n-th piece of an answer is let through (n + 1) delays after it came, as if each of the server's steps had taken
so much longer. It is stamped when it is let through, by the same clock and on the same path as all others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace

from counterproof.run.targets.http.pool import Piece


class HeldBack:
    """Pieces that wait for their time. `delay_ns` 0 lets everything through at once."""

    def __init__(self, delay_ns: int) -> None:
        self._delay_ns = delay_ns
        self._waiting: list[tuple[int, int, Piece]] = []
        self._seen: dict[str, int] = {}
        self._number = 0

    def take(self, pieces: Iterable[Piece], now: int) -> list[Piece]:
        """Hold the new pieces; returns those whose time has come, stamped `now`."""
        if not self._delay_ns:
            return list(pieces)
        for piece in pieces:
            count = self._seen[piece.request_id] = self._seen.get(piece.request_id, 0) + 1
            self._number += 1
            heapq.heappush(self._waiting, (piece.time_ns + count * self._delay_ns, self._number, piece))
            if piece.done or piece.error:
                del self._seen[piece.request_id]
        ready = []
        while self._waiting and self._waiting[0][0] <= now:
            ready.append(replace(heapq.heappop(self._waiting)[2], time_ns=now))
        return ready

    def wait_s(self, now: int, longest: float) -> float:
        """How long the next wait may be."""
        if not self._waiting:
            return longest
        return min(longest, max(0.0, (self._waiting[0][0] - now) / 1e9))
