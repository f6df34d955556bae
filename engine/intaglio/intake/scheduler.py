"""Which request computes how many tokens in the next step: continuous batching under a token budget.

One step mixes decodes and prefill chunks. The rules, all of which are deterministic:

- Requests are admitted in order of arrival, while there is a slot, budget, and room for all of the request's
  tokens (its blocks are taken at once) plus one block of growth for every request that is already running.
- Decodes go before prefill chunks, and the earlier arrival before the later. Only what they leave over of the
  budget admits others, so that every running request has its part in every step.
- When blocks run out, the earlier arrival has the older right: it preempts the latest arrivals, which give up
  their blocks, go back to the queue and recompute. The earliest request can therefore always go on, and a
  request that alone outgrows the pool ends with "length"; neither can wait for the other for ever.
- With a prefix cache a request starts with the blocks that are there already, found before any are allocated; one
  whose missing blocks another is about to compute is started afterwards (see `reuse`), and others may pass it.
- Without a KV cache a row is the whole prefix and is never cut, so not all may fit a step: who has waited
  longest goes first.

A request may be aborted at any moment. While a step with its row is running, its blocks stay in quarantine.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable
from operator import attrgetter

from intaglio.errors import QueueFullError, WorkerError
from intaglio.intake.planned_step import PlannedStep, SchedulerLimits, Sink, fault_of
from intaglio.intake.request import SamplingParams
from intaglio.intake.reuse import PrefixReuse
from intaglio.intake.sequence import Sequence, Status, Tables
from intaglio.intake.step_plan import RowPlan, RowResult, StepPlan, StepResult
from intaglio.state.block_pools import BlockPools
from intaglio.state.prefix_cache import CachedBlock
from intaglio.telemetry import Telemetry

# How many waiting requests one step passes over at most because their prefix is being computed.
_PASSED_OVER = 64

Row = tuple[Sequence, int, int]  # whose, tokens to compute, blocks newly taken
_arrival = attrgetter("arrival")
_request_id = attrgetter("request_id")


class Scheduler:
    """Queues, admission, budget, preemption and commit. Plain Python; it neither computes nor waits."""

    def __init__(
        self,
        limits: SchedulerLimits,
        pools: BlockPools | None,
        telemetry: Telemetry,
        reuse: PrefixReuse | None = None,
    ) -> None:
        """pools None: without a KV cache. reuse None: without a prefix cache."""
        self.limits = limits
        self.pools = pools
        self.reuse = reuse
        self._telemetry = telemetry
        self._max_len = pools.capacity_tokens if pools else limits.token_budget
        self._live: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._heap: list[tuple[int, Sequence]] = []
        self._arrivals = 0
        self._step = 0
        self._allocate_ns = 0

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Admitted requests without a slot."""
        return len(self._live) - len(self._running)

    @property
    def has_work(self) -> bool:
        """Whether any admitted request is unfinished."""
        return bool(self._live)

    def get(self, request_id: str) -> Sequence | None:
        """The live request of this id, or None."""
        return self._live.get(request_id)

    def live_ids(self) -> list[str]:
        """The ids of all live requests, in order of arrival."""
        return list(self._live)

    def tables(self) -> list[Tables]:
        """The block tables of all live requests."""
        return [sequence.block_tables for sequence in self._live.values()]

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
        """Take a running request's slot and blocks; it recomputes when its turn comes. False if not possible."""
        sequence = self._running.get(request_id)
        if sequence is None or sequence.in_flight is not None:
            return False
        self._preempt(sequence)
        return True

    def plan(self) -> PlannedStep | None:
        """The next step, or None when there is nothing to compute. Complete, fail or cancel it afterwards."""
        self._allocate_ns = 0
        rows = self._plan_cached() if self.pools else self._plan_uncached()
        if not rows:
            return None
        self._step += 1
        sequences, plans, new_blocks, use_cache = {}, [], {}, self.pools is not None
        for sequence, count, new in rows:
            sequence.last_step = sequence.in_flight = self._step
            sequences[sequence.request_id] = sequence
            new_blocks[sequence.request_id] = new
            plans.append(sequence.row(count, use_cache=use_cache))
        plans.sort(key=_request_id)
        step = StepPlan(step=self._step, rows=tuple(plans), use_cache=use_cache)
        return PlannedStep(step, sequences, new_blocks, self._allocate_ns)

    def complete(self, planned: PlannedStep, result: StepResult, sink: Sink) -> None:
        """Commit what the workers computed. Raises WorkerError, with nothing changed, for another step's result."""
        plan = planned.plan
        ids = [row.request_id for row in plan.rows]
        if result.step != plan.step or [row.request_id for row in result.rows] != ids:
            raise WorkerError(
                f"the worker answered step {result.step}, which is not step {plan.step} as planned"
            )
        prefilled = decoded = 0
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
                self._commit(sequence, row, answer, sink)
        self._telemetry.counters.add("prefill_tokens", prefilled)
        self._telemetry.counters.add("decode_tokens", decoded)
        self._end_step(planned)

    def fail(self, planned: PlannedStep, message: str, sink: Sink) -> None:
        """The step could not be computed: end its requests with an error."""
        for sequence in planned.sequences.values():
            sequence.in_flight = None
            if sequence.status is not Status.FINISHED:
                self._finish(sequence)
                sink.failed(sequence, message)
        self._end_step(planned)

    def cancel(self, planned: PlannedStep) -> None:
        """The step was interrupted and nothing of it counts: its rows will be planned again."""
        for sequence in planned.sequences.values():
            sequence.in_flight = None
        self._end_step(planned)

    # Planning

    def _plan_uncached(self) -> list[Row]:
        while len(self._running) < self.limits.max_running and (head := self._head()):
            self._start(head, [])
        budget, rows = self.limits.token_budget, []
        for sequence in self._by_turn():
            if len(sequence.tokens) <= budget:
                budget -= len(sequence.tokens)
                rows.append((sequence, len(sequence.tokens), 0))
        return rows

    def _plan_cached(self) -> list[Row]:
        # Who is admitted had budget left over, so every running request has its part of every step's budget.
        rows = self._plan_all() or self._plan_some()
        self._admit(self.limits.token_budget - sum(count for _, count, _ in rows), rows)
        return rows

    def _plan_all(self) -> list[Row]:
        """All running requests with all they can compute, if budget and blocks suffice; else nothing is changed."""
        pools, chunk = self._pools(), self.limits.prefill_chunk or self.limits.token_budget
        size, rows, growing, budget, blocks = pools.block_tokens, [], [], self.limits.token_budget, 0
        for sequence in self._running.values():
            count = min(len(sequence.tokens) - sequence.computed, chunk)
            need = -(-(sequence.computed + count) // size) - len(sequence.block_tables[0])
            budget -= count
            if need > 0:
                blocks += need
                growing.append((sequence, need))
            rows.append((sequence, count, max(0, need)))
        if budget < 0 or blocks > pools.available:
            return []
        for sequence, need in growing:
            self._grow(sequence, need)
        return rows

    def _plan_some(self) -> list[Row]:
        budget, chosen = self.limits.token_budget, []
        for sequence in self._by_turn():
            count = self._chunk(sequence, budget)
            budget -= count
            chosen.append((sequence, count))
        return self._place(chosen)

    def _place(self, chosen: list[tuple[Sequence, int]]) -> list[Row]:
        """Give every chosen row its blocks, earliest arrival first. A row that gets none waits."""
        pools, rows = self._pools(), []
        for sequence, count in sorted(chosen, key=lambda choice: choice[0].arrival):
            if sequence.status is not Status.RUNNING:
                continue  # preempted by an earlier one
            need = pools.blocks_for(sequence.computed + count) - sequence.blocks_held
            while need > pools.available and (victim := self._victim(sequence)):
                self._preempt(victim)
            if need > pools.available:
                continue
            if need > 0:
                self._grow(sequence, need)
            rows.append((sequence, count, max(0, need)))
        return rows

    def _admit(self, budget: int, rows: list[Row]) -> None:
        """Start waiting requests while budget, slots and blocks last."""
        passed: list[Sequence] = []
        while budget > 0 and len(self._running) < self.limits.max_running and (head := self._head()):
            found = self.reuse.find(head) if self.reuse else []
            if found is None:
                if len(passed) == _PASSED_OVER:
                    break
                passed.append(heapq.heappop(self._heap)[1])
                continue
            need = self._room_for(head, found)
            if need is None:
                break
            self._start(head, found)
            self._grow(head, need)
            count = self._chunk(head, budget)
            budget -= count
            rows.append((head, count, need))
        for sequence in passed:
            heapq.heappush(self._heap, (sequence.arrival, sequence))
            if self.reuse:
                self.reuse.put_off(sequence)

    def _room_for(self, head: Sequence, found: list[CachedBlock]) -> int | None:
        """How many blocks the request needs besides the found ones, or None if it has to wait for them."""
        pools = self._pools()
        need = pools.blocks_for(len(head.tokens)) - len(found)
        free = pools.available - (self.reuse.cache.idle(found) if self.reuse else 0)
        if need + len(self._running) > free and (self._running or need > free):
            return None
        return need

    def _by_turn(self) -> list[Sequence]:
        return sorted(self._running.values(), key=lambda s: (s.last_step, s.remaining > 1, s.arrival))

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        return min(sequence.remaining, self.limits.prefill_chunk or budget, budget)

    def _head(self) -> Sequence | None:
        while self._heap and self._heap[0][1].status is not Status.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def _start(self, head: Sequence, found: list[CachedBlock]) -> None:
        heapq.heappop(self._heap)
        head.status = Status.RUNNING
        head.last_step = self._step
        self._running[head.request_id] = head
        if self.reuse:
            self.reuse.start(head, found)
        if head.lost:
            self._telemetry.counters.add("tokens_recomputed", max(0, head.lost - head.computed))
            head.lost = 0

    def _grow(self, sequence: Sequence, need: int) -> None:
        started = time.perf_counter_ns()
        pools = self._pools()
        tables = pools.allocate(need, sequence.block_tables, sequence.tenant)
        sequence.grow(tables, pools.generations(tables))
        self._allocate_ns += time.perf_counter_ns() - started

    def _victim(self, sequence: Sequence) -> Sequence | None:
        last = max(self._running.values(), key=_arrival)
        return last if last.arrival > sequence.arrival else None

    def _preempt(self, victim: Sequence) -> None:
        self._release(victim)
        del self._running[victim.request_id]
        self._telemetry.counters.add("preemptions")
        self._telemetry.event("preemption", request_id=victim.request_id, tokens_lost=victim.computed)
        victim.lost, victim.computed = victim.computed, 0
        victim.preemptions += 1
        victim.status = Status.WAITING
        heapq.heappush(self._heap, (victim.arrival, victim))

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
            self._telemetry.counters.add("tokens_generated")
            reason = sequence.id_stop(self.limits.eos_token_ids, self._max_len)
            exhausted = reason == "length" and sequence.output_len < sequence.params.max_tokens
            reason = sink.token(sequence, answer, index, reason)
            if reason is None:
                continue
            if exhausted and reason == "length":
                kind = "kv_exhausted" if self.pools else "recompute_budget_exhausted"
                self._telemetry.event(kind, request_id=sequence.request_id, tokens=len(sequence.tokens))
            self._telemetry.counters.add("tokens_discarded", len(answer.tokens) - index - 1)
            return True
        return False

    def _finish(self, sequence: Sequence) -> None:
        sequence.status = Status.FINISHED
        self._release(sequence)
        self._live.pop(sequence.request_id, None)
        self._running.pop(sequence.request_id, None)

    def _release(self, sequence: Sequence) -> None:
        if self.pools and sequence.block_tables:
            self.pools.release(sequence.block_tables, hold_step=sequence.in_flight)
        if self.reuse:
            self.reuse.leave(sequence)
        sequence.drop_blocks()

    def _end_step(self, planned: PlannedStep) -> None:
        if self.pools:
            self.pools.end_step(planned.plan.step)

    def _pools(self) -> BlockPools:
        if self.pools is None:
            raise WorkerError("blocks are asked for without a KV cache")
        return self.pools
