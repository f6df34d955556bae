"""How far a study is: bars on a terminal, plain lines elsewhere. Both tell arm, block, requests and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from counterproof.plan.reserve import blocks_in_force
from counterproof.record.store import RunKey
from counterproof.run.places import Place, places


class TimeLeft:
    """Estimate of the time that a study still needs, from the runs of the same arm seen so far."""

    def __init__(
        self, plan: Mapping[str, Any], missing: list[Place], events: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._left = list(missing)
        self._seen: dict[tuple[str, str], list[float]] = {}
        self._blocks = blocks_in_force(plan, events)
        self.total = len(places(plan, events))

    def ended(self, key: RunKey, seconds: float) -> None:
        """A run was sealed."""
        self._seen.setdefault((key.phase, key.arm), []).append(seconds)
        place = Place.of(key)
        if place in self._left:
            self._left.remove(place)

    def extended(self, missing: list[Place]) -> None:
        """Reserve blocks were called up; `missing` are their runs."""
        self._left = list(missing)
        self.total += len(missing)
        self._blocks = max([self._blocks, *(place.block + 1 for place in missing if place.block is not None)])

    def text(self) -> str:
        """e.g. `about 6 min left`; nothing before the first run has ended."""
        known = {where: sum(times) / len(times) for where, times in self._seen.items()}
        if not known or not self._left:
            return ""
        mean = sum(known.values()) / len(known)
        where = [(place.phase, place.arm) for place in self._left]
        seconds = sum(known.get(one, mean) for one in where)
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"

    def label(self, key: RunKey) -> str:
        """e.g. `block 2/6 candidate`."""
        if key.block is None:
            return f"{key.phase} {key.arm}"
        return f"block {key.block + 1}/{self._blocks} {key.arm}"


class LineProgress:
    """One line when a run starts and one when it ends, on standard error."""

    def __init__(self, left: TimeLeft) -> None:
        self._left = left
        self._began = 0.0

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def run_started(self, key: RunKey, number: int, total: int) -> None:
        self._began = time.monotonic()
        self._say(f"[{number:>2}/{total}] {self._left.label(key)} ...")

    def requests_done(self, done: int, total: int) -> None:
        """Lines would be too many; the bars show it."""

    def run_ended(self, key: RunKey, note: str) -> None:
        if note.startswith("sealed"):
            self._left.ended(key, time.monotonic() - self._began)
        left = self._left.text()
        self._say(f"        {self._left.label(key)}: {note}{f', {left}' if left else ''}")

    def waiting(self, what: str) -> None:
        self._say(f"        waiting for {what}")

    def extended(self, missing: list[Place], reason: str) -> None:
        self._left.extended(missing)
        self._say(f"        {_extended(missing, reason)}, {self._left.text()}")

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class BarProgress:
    """Two bars: the runs of the study, and the requests of the run that is going on."""

    def __init__(self, left: TimeLeft) -> None:
        self._left = left
        self._began = 0.0
        self._bars = Progress(
            TextColumn("{task.description}", justify="left"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}"),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            # Drawing takes time from the measured process: twice a second is enough to read.
            refresh_per_second=2,
        )
        self._study: TaskID = self._bars.add_task("study", total=left.total, unit="runs", note="")
        self._run: TaskID = self._bars.add_task("run", total=1, unit="requests", note="", visible=False)

    def __enter__(self) -> BarProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.update(self._run, visible=False)
        self._bars.stop()

    def run_started(self, key: RunKey, number: int, total: int) -> None:
        self._began = time.monotonic()
        self._bars.update(self._study, completed=number - 1, total=total, note=self._left.text())
        self._bars.update(
            self._run,
            completed=0,
            total=1,
            visible=True,
            description=self._left.label(key),
            note="starting",
        )

    def requests_done(self, done: int, total: int) -> None:
        self._bars.update(self._run, completed=done, total=max(total, 1), note="")

    def run_ended(self, key: RunKey, note: str) -> None:
        if note.startswith("sealed"):
            self._left.ended(key, time.monotonic() - self._began)
            self._bars.advance(self._study, 1)
        else:
            self._bars.console.print(f"{self._left.label(key)}: {note}", markup=False)
        self._bars.update(self._study, note=self._left.text())

    def waiting(self, what: str) -> None:
        self._bars.update(self._run, visible=True, note=f"waiting for {what}")

    def extended(self, missing: list[Place], reason: str) -> None:
        self._left.extended(missing)
        self._bars.console.print(_extended(missing, reason), markup=False)
        self._bars.update(self._study, total=self._left.total, note=self._left.text())


def _extended(missing: list[Place], reason: str) -> str:
    blocks = len({place.block for place in missing})
    return f"{blocks} reserve blocks are called up, as registered: {reason}"


def show_progress(
    plan: Mapping[str, Any], missing: list[Place], events: Sequence[Mapping[str, Any]] = ()
) -> BarProgress | LineProgress:
    """Bars when standard error is a terminal, else lines. Use it with `with`."""
    left = TimeLeft(plan, missing, events)
    return BarProgress(left) if sys.stderr.isatty() else LineProgress(left)
