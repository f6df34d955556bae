"""How far a search is: a bar that renews itself on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, TextIO

from counterproof.commands.console import one_line
from counterproof_review.challenge.hunt import Watch

WIDTH = 24
EVERY_S = 5.0


class Bar(Watch):
    """Told after every measurement. `minutes`: how long the search may measure."""

    def __init__(self, stream: TextIO, minutes: float) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._minutes = minutes
        self._head = ""
        self._phase = ""
        self._shown = 0.0
        self._dirty = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()

    def cell(self, done: int, total: int, phase: str, seconds: float) -> None:
        """Show where the search is."""
        filled = min(WIDTH, WIDTH * done // max(total, 1))
        kind = "probing" if phase in ("corner", "boundary", "sobol", "refine") else phase
        self._head = (
            f"[{'#' * filled}{'.' * (WIDTH - filled)}] {kind} {done}/{total}, "
            f"{seconds / 60:.1f} of {self._minutes:g} min"
        )
        self._show(self._head, new=kind != self._phase or done == total)
        self._phase = kind

    def run(self, message: dict[str, Any]) -> None:
        """Show which fresh run is running, and every one that failed."""
        if message["kind"] == "run":
            self._show(f"{self._head}; fresh run {message['number']}/{message['of']}", new=False)
        elif message["kind"] == "failed":
            self._show(f"a fresh run failed, attempt {message['attempt']}: {message['reason']}", new=True)
        elif message["kind"] == "waiting":
            self._show(f"{self._head}; waiting for another measured run on this machine", new=True)

    def _show(self, text: str, *, new: bool) -> None:
        now = time.monotonic()
        if not self._terminal and not new and now - self._shown < EVERY_S:
            return
        self._shown = now
        self._clear()
        self._stream.write(one_line(text) + ("" if self._terminal else "\n"))
        self._stream.flush()
        self._dirty = self._terminal

    def _clear(self) -> None:
        if self._dirty:
            self._stream.write("\r\x1b[2K")
            self._dirty = False
