"""A step on its way through the planner: what bounds it, what was planned, and who takes what it yields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from intaglio.intake.sequence import Sequence
from intaglio.intake.step_plan import RowPlan, RowResult, StepPlan


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What bounds a step. prefill_chunk None: the budget. vocab_size: ids a worker may commit.
    max_waiting: most requests that wait for a slot (None: no bound)."""

    token_budget: int
    max_running: int
    prefill_chunk: int | None
    vocab_size: int
    eos_token_ids: frozenset[int]
    max_waiting: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step on its way: the plan that crosses to the workers, and what stays here.

    movers: requests without a row whose blocks move in this step, and how many moves each has.
    """

    plan: StepPlan
    sequences: dict[str, Sequence]
    new_blocks: dict[str, int] = field(default_factory=dict)
    allocate_ns: int = 0
    movers: dict[str, int] = field(default_factory=dict)


class Sink(Protocol):
    """Where committed tokens go."""

    def token(self, sequence: Sequence, row: RowResult, index: int, reason: str | None) -> str | None:
        """Take token `index` of `row`, already appended. Returns the finish reason: `reason`, or an own one."""

    def failed(self, sequence: Sequence, message: str) -> None:
        """The request ends with an error."""


def fault_of(row: RowPlan, answer: RowResult, vocab_size: int) -> str:
    """How the answer breaks the contract of its row, or an empty string."""
    most = len(row.draft) + 1 if row.sample else 0
    if len(answer.tokens) > most or (row.sample and not answer.tokens):
        return f"the worker committed {len(answer.tokens)} tokens where at most {most} were asked for"
    for token in answer.tokens:
        if not 0 <= token < vocab_size:
            return f"the worker committed a token outside 0..{vocab_size - 1}"
    return ""
