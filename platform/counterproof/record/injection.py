"""Two things of the outside world that a drill can change for the harness's own process: the disk and the wall clock.

Everything that is flushed and every wall-clock time of a record goes through here. Nothing is injected unless a
drill (run/faults) asks for it, for the time of a `with` and in its own context only.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar

_FLUSH_DELAY_S: ContextVar[float] = ContextVar("flush_delay_s", default=0.0)
_CLOCK_STEP_S: ContextVar[float] = ContextVar("clock_step_s", default=0.0)


def flush(descriptor: int) -> None:
    """fsync, after the delay of a slow disk."""
    if delay := _FLUSH_DELAY_S.get():
        time.sleep(delay)
    os.fsync(descriptor)


def now() -> datetime.datetime:
    """The wall-clock time in UTC, with the step that was injected."""
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=_CLOCK_STEP_S.get())


@contextlib.contextmanager
def slow_disk(delay_s: float) -> Iterator[None]:
    """Every flush takes so much longer."""
    token = _FLUSH_DELAY_S.set(delay_s)
    try:
        yield
    finally:
        _FLUSH_DELAY_S.reset(token)


@contextlib.contextmanager
def clock_step() -> Iterator[ClockStep]:
    """A wall clock that can be set to another time."""
    token = _CLOCK_STEP_S.set(_CLOCK_STEP_S.get())
    try:
        yield ClockStep()
    finally:
        _CLOCK_STEP_S.reset(token)


class ClockStep:
    """Sets the clock of a `clock_step`."""

    def by(self, seconds: float) -> None:
        """Put the clock so many seconds ahead (negative: back)."""
        _CLOCK_STEP_S.set(_CLOCK_STEP_S.get() + seconds)
