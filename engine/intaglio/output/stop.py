"""Stop strings: find them across token borders, and never show a part of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Watches one request's text for its stop strings.

    The text ends before the stop string that is complete first; of several that are complete with the same
    character, before the longest. So the result depends on the text alone and not on how tokens cut it.
    Text that may be the beginning of a stop string is held back until the next characters decide.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: non-empty strings; none at all means that nothing is ever held back."""
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Add text. Returns what may be shown now, and whether a stop string was found (then it is over)."""
        if not self._stops:
            return text, False
        buffer = self._held + text
        found = self._find(buffer)
        if found is not None:
            self._held = ""
            return buffer[:found], True
        keep = self._overlap(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep], False

    def finish(self) -> str:
        """The text ends without a stop string: what was held back."""
        held, self._held = self._held, ""
        return held

    def _find(self, buffer: str) -> int | None:
        hits = [(at + len(stop), at) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        return min(hits)[1] if hits else None

    def _overlap(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that begins a stop string."""
        longest = min(len(buffer), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            end = buffer[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
