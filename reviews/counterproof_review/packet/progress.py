"""How far a replay is: one line that renews itself on a terminal, a line a run elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, TextIO

from counterproof.commands.console import one_line


class Progress:
    """Told by messages of the measuring process: which run of how many, requests, time left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._began = time.monotonic()
        self._head = ""
        self._dirty = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()

    def tell(self, message: dict[str, Any]) -> None:
        """Show one message."""
        kind = message["kind"]
        if kind == "run":
            self._head = (
                f"[{message['number']}/{message['of']}] block {message['block'] + 1}, arm {message['arm']}"
            )
            self._show(
                self._head + self._left(message["number"] - 1, message["of"]), lasting=not self._terminal
            )
        elif kind == "requests" and self._terminal:
            self._show(f"{self._head}, request {message['done']}/{message['of']}", lasting=False)
        elif kind == "failed":
            self._show(
                f"{self._head} failed, attempt {message['attempt']}: {message['reason']}", lasting=True
            )
        elif kind == "rounding":
            self._head = f"outputs differ; how far rounding moves the logits of arm {message['arm']}"
            self._show(self._head, lasting=not self._terminal)
        elif kind == "waiting":
            self._show(f"{self._head}, waiting for another measured run on this machine", lasting=False)

    def _left(self, done: int, total: int) -> str:
        if done < 1:
            return ""
        seconds = (time.monotonic() - self._began) / done * (total - done)
        return f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"

    def _show(self, text: str, *, lasting: bool) -> None:
        self._clear()
        self._stream.write(one_line(text) + ("\n" if lasting or not self._terminal else ""))
        self._stream.flush()
        self._dirty = self._terminal and not lasting

    def _clear(self) -> None:
        if self._dirty:
            self._stream.write("\r\x1b[2K")
            self._dirty = False
