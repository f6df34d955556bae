"""One request's events as an iterator that ends the request when nobody wants them any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType

from intaglio.intake.request import TokenEvent


class TokenStream(Iterator[TokenEvent]):
    """Yields the events of `request_id` up to its last one, driving the engine while there are none.

    `close` aborts the request unless it has ended, also before the first event; so does leaving a `with` block
    and an error while computing. A stream that is dropped instead counts as closed by the engine's next step.
    """

    def __init__(
        self,
        request_id: str,
        events: deque[TokenEvent],
        advance: Callable[[deque[TokenEvent]], None],
        abort: Callable[[str], object],
        dropped: Callable[[str], object],
    ) -> None:
        """advance: compute one step, which may fill `events`. dropped: told instead of abort when collected."""
        self.request_id = request_id
        self._events = events
        self._advance = advance
        self._abort = abort
        self._dropped = dropped
        self._over = False

    def __next__(self) -> TokenEvent:
        if self._over:
            raise StopIteration
        try:
            while not self._events:
                self._advance(self._events)
        except BaseException:
            self.close()
            raise
        event = self._events.popleft()
        self._over = event.finish_reason is not None
        return event

    def close(self) -> None:
        """No further events are wanted."""
        if not self._over:
            self._over = True
            self._abort(self.request_id)

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # The collector may run anywhere, in the middle of planning too, so nothing is done here but to note it.
        if not getattr(self, "_over", True):
            self._dropped(self.request_id)
