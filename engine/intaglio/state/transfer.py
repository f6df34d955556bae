"""Block moves on their way: asked for between steps, done by the workers with the next step, answered after it.

Plain Python. The scheduler takes a step's moves into its plan and hands back what became of them; whoever asked
is told once, whatever happens to the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from intaglio.intake.step_plan import BlockMove, MoveResult

Done = Callable[[tuple[MoveResult, ...]], None]

# What reads a block goes before what fills one: a block given up in a step may be filled again in the same step.
_READS = ("copy_out", "save")


@dataclass(frozen=True, slots=True)
class _Batch:
    request_id: str
    moves: tuple[BlockMove, ...]
    done: Done


class Transfers:
    """The moves of one engine. Each batch is of one kind and belongs to a request ("" for none)."""

    def __init__(self) -> None:
        self._asked: list[_Batch] = []
        self._running: dict[int, list[_Batch]] = {}

    @property
    def pending(self) -> bool:
        """Whether any move was asked for that no step has taken yet."""
        return bool(self._asked)

    def ask(self, request_id: str, moves: Iterable[BlockMove], done: Done) -> None:
        """Have `moves` done with the next step; `done` then gets one result each, in their order."""
        self._asked.append(_Batch(request_id, tuple(moves), done))

    def take(self, step: int) -> tuple[BlockMove, ...]:
        """All moves asked for, in the order in which step `step` must do them."""
        if not self._asked:
            return ()
        ordered = sorted(self._asked, key=lambda batch: batch.moves[0].kind not in _READS)
        self._running[step] = ordered
        self._asked = []
        return tuple(move for batch in ordered for move in batch.moves)

    def movers(self, step: int) -> dict[str, int]:
        """Requests whose blocks move in step `step`, and how many moves each has."""
        found: dict[str, int] = {}
        for batch in self._running.get(step, ()):
            if batch.request_id:
                found[batch.request_id] = found.get(batch.request_id, 0) + len(batch.moves)
        return found

    def complete(self, step: int, results: Sequence[MoveResult]) -> None:
        """The step is over: tell whoever asked. Results that are not one for each move count as failures."""
        batches = self._running.pop(step, [])
        asked = sum(len(batch.moves) for batch in batches)
        if len(results) != asked:
            results = [MoveResult(error=f"{len(results)} results came for {asked} moves")] * asked
        start = 0
        for batch in batches:
            stop = start + len(batch.moves)
            batch.done(tuple(results[start:stop]))
            start = stop

    def fail(self, step: int, reason: str) -> None:
        """The step did not come to an end: none of its moves counts."""
        for batch in self._running.pop(step, []):
            batch.done((MoveResult(error=reason),) * len(batch.moves))
