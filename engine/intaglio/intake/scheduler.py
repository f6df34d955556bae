"""The life of requests: they are queued, planned into steps, given what the steps computed, and ended.

A request may be aborted at any moment. While a step with its row is running, its blocks stay in quarantine.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from collections.abc import Sequence as Items

from intaglio.errors import QueueFullError, WorkerError
from intaglio.intake.planned_step import PlannedStep, Sink, fault_of
from intaglio.intake.planner import Planner
from intaglio.intake.request import SamplingParams
from intaglio.intake.sequence import Sequence, Status
from intaglio.intake.step_plan import RowPlan, RowResult, StepResult


class Scheduler(Planner):
    """A planner and the life of its requests: how they come, what a step made of them, how they end."""

    def get(self, request_id: str) -> Sequence | None:
        """The live request of this id, or None."""
        return self._live.get(request_id)

    def live_ids(self) -> list[str]:
        """The ids of all live requests, in order of arrival."""
        return list(self._live)

    def tables(self) -> list[Items[Items[int]]]:
        """The block tables of all live requests, and all other references to blocks."""
        own: list[Items[Items[int]]] = [sequence.block_tables for sequence in self._live.values()]
        return own + (self.traffic.tables() if self.traffic is not None else [])

    def check_room(self) -> None:
        """Raise QueueFullError when no further request may wait."""
        most = self.limits.max_waiting
        if most is not None and self.waiting >= most:
            raise QueueFullError(
                f"{self.waiting} requests are waiting, the most that scheduler.max_waiting={most} allows; "
                "send it again later",
                field="scheduler.max_waiting",
            )

    def add(
        self,
        request_id: str,
        prompt: Iterable[int],
        params: SamplingParams,
        seed: int,
        *,
        want_logits: bool = False,
        tenant: str = "",
    ) -> Sequence:
        """Queue a request whose values have been checked and whose id is not live."""
        tokens = list(prompt)
        sequence = Sequence(
            request_id,
            self._arrivals,
            len(tokens),
            tokens,
            params,
            seed,
            want_logits=want_logits,
            tenant=tenant,
        )
        self._arrivals += 1
        self._live[request_id] = sequence
        heapq.heappush(self._heap, (sequence.arrival, sequence))
        return sequence

    def abort(self, request_id: str) -> Sequence | None:
        """End a live request now, whatever it is doing. None if it is not live (any more)."""
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._finish(sequence)
        return sequence

    def preempt(self, request_id: str) -> bool:
        """Take a running request's slot and blocks; it goes on when its turn comes. False if not possible."""
        sequence = self._running.get(request_id)
        if sequence is None or sequence.in_flight is not None:
            return False
        self._preempt(sequence)
        return True

    def complete(self, planned: PlannedStep, result: StepResult, sink: Sink) -> None:
        """Commit what the workers computed. Raises WorkerError, with nothing changed, for another step's result."""
        plan = planned.plan
        ids = [row.request_id for row in plan.rows]
        if result.step != plan.step or [row.request_id for row in result.rows] != ids:
            raise WorkerError(
                f"the worker answered step {result.step}, which is not step {plan.step} as planned"
            )
        prefilled = decoded = generated = 0
        for row, answer in zip(plan.rows, result.rows):
            sequence, count = planned.sequences[row.request_id], len(row.tokens)
            sequence.in_flight = None
            sequence.tokens_computed += count
            if row.phase == "decode":
                decoded += count
            else:
                prefilled += count
            if sequence.status is Status.FINISHED:
                self._telemetry.counters.add("tokens_discarded", len(answer.tokens))
                continue
            fault = answer.error or fault_of(row, answer, self.limits.vocab_size)
            if fault:
                self._finish(sequence)
                sink.failed(sequence, fault)
            else:
                before = len(sequence.tokens)
                self._commit(sequence, row, answer, sink)
                generated += len(sequence.tokens) - before
        self._telemetry.counters.add("tokens_generated", generated)
        self._telemetry.counters.add("prefill_tokens", prefilled)
        self._telemetry.counters.add("decode_tokens", decoded)
        if self.traffic is not None:
            self.traffic.complete(plan.step, result.moved)
        self._end_step(planned)

    def fail(self, planned: PlannedStep, message: str, sink: Sink) -> None:
        """The step could not be computed: end its requests with an error."""
        for sequence in planned.sequences.values():
            sequence.in_flight = None
            if sequence.status is not Status.FINISHED:
                self._finish(sequence)
                sink.failed(sequence, message)
        if self.traffic is not None:
            self.traffic.fail(planned.plan.step, message)
        self._end_step(planned)

    def cancel(self, planned: PlannedStep) -> None:
        """The step was interrupted and nothing of it counts: its rows will be planned again."""
        for sequence in planned.sequences.values():
            sequence.in_flight = None
        if self.traffic is not None:
            self.traffic.fail(planned.plan.step, "the step was interrupted")
        self._end_step(planned)

    # Committing

    def _commit(self, sequence: Sequence, row: RowPlan, answer: RowResult, sink: Sink) -> None:
        if self.pools:
            # Of a draft only the accepted part is in the cache: the last committed token never is.
            accepted = max(0, len(answer.tokens) - 1) if row.draft else 0
            sequence.computed = row.start + len(row.tokens) - len(row.draft) + accepted
        finished = self._append(sequence, answer, sink)
        if self.reuse:
            self.reuse.computed(sequence, row.start)
        if finished:
            self._finish(sequence)

    def _append(self, sequence: Sequence, answer: RowResult, sink: Sink) -> bool:
        """Take the committed tokens. Whether they end the request; nothing behind its end is taken."""
        for index, token in enumerate(answer.tokens):
            sequence.tokens.append(token)
            told = sequence.id_stop(self.limits.eos_token_ids, self._max_len)
            reason = sink.token(sequence, answer, index, told)
            if reason is None:
                continue
            if told == reason == "length" and sequence.output_len < sequence.params.max_tokens:
                kind = "kv_exhausted" if self.pools else "recompute_budget_exhausted"
                self._telemetry.event(kind, request_id=sequence.request_id, tokens=len(sequence.tokens))
            self._telemetry.counters.add("tokens_discarded", len(answer.tokens) - index - 1)
            return True
        return False

    def _finish(self, sequence: Sequence) -> None:
        if sequence.status is Status.WAITING:
            self._forget_waiting()
        sequence.status = Status.FINISHED
        if self.traffic is not None:
            self.traffic.ended(sequence)
        self._release(sequence)
        self._live.pop(sequence.request_id, None)
        self._running.pop(sequence.request_id, None)
        self._arriving.pop(sequence.request_id, None)

    def _end_step(self, planned: PlannedStep) -> None:
        if self.pools:
            self.pools.end_step(planned.plan.step)
