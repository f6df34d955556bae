"""What a search has measured, kept so that it can be killed and go on: one line before and one after every measurement.

A search is a function of its seed and of what was measured, so going on means to search again from the beginning and
to read instead of measuring, as far as the journal goes. Time is counted in the journal too, so that a search that
went on stops probing where it would have stopped. What was begun and never ended shows as cut off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counterproof.errors import InputError
from counterproof.record import atomic, canonical
from counterproof.record.journal import Journal
from counterproof_review.challenge.search import Outcome, Probe
from counterproof_review.challenge.space import Cell

HEADER = "search.json"
JOURNAL = "journal.jsonl"
BEGUN, MEASURED, RELATED = "begun", "measured", "related"


class Journaled:
    """The journal of one search. `seconds`: measured so far, as the search has come to it."""

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        """Begin, or go on. Raises InputError when the folder holds another search, EvidenceError when it was changed."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / HEADER
        if path.is_file():
            there = canonical.read_json(path)
            if there != header:
                names = ", ".join(sorted(k for k in header if header[k] != there.get(k)))
                raise InputError(
                    f"{folder} holds another search (it differs in {names})",
                    details=["go on with the same packet, seed and budget, or give another --dir"],
                )
        elif any(folder.iterdir()):
            raise InputError(f"{folder} is not empty and holds no search", details=["give another --dir"])
        else:
            atomic.write_json(path, header)
        self._journal = Journal(folder / JOURNAL)
        events = self._journal.events()
        self._known = {(e["what"], e["seed"]): e for e in events if e["kind"] in (MEASURED, RELATED)}
        begun = sum(e["kind"] == BEGUN for e in events)
        self.cut_off = begun - len(self._known)
        self.recalled = 0
        self.seconds = 0.0

    def probe(self, what: str, probe: Probe) -> Probe:
        """`probe`, journalled under `what`."""

        def measured(cell: Cell, blocks: int, seed: int) -> Outcome:
            event = self._recall(what, seed)
            if event is None:
                event = self._measure(MEASURED, what, seed, cell, lambda: _plain(probe(cell, blocks, seed)))
            return Outcome(tuple(event["gains"]), event["wrong"], tuple(event["again"]), event["note"])

        return measured

    def related(
        self, what: str, cell: Cell, seed: int, check: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Any other measurement that gives plain data, journalled in the same way."""
        event = self._recall(what, seed)
        found = (
            self._measure(RELATED, what, seed, cell, lambda: {"found": check()}) if event is None else event
        )
        result: dict[str, Any] = found["found"]
        return result

    def _recall(self, what: str, seed: int) -> dict[str, Any] | None:
        event = self._known.get((what, str(seed)))
        if event is not None:
            self.recalled += 1
            self.seconds += event["seconds"]
        return event

    def _measure(
        self, kind: str, what: str, seed: int, cell: Cell, run: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        self._journal.append(BEGUN, what=what, seed=str(seed), cell=cell)
        began = time.monotonic()
        found = run()
        seconds = round(time.monotonic() - began, 3)
        self.seconds += seconds
        return self._journal.append(kind, what=what, seed=str(seed), cell=cell, seconds=seconds, **found)


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {
        "gains": list(outcome.gains),
        "wrong": outcome.wrong,
        "again": list(outcome.again),
        "note": outcome.note,
    }
