"""Which request computes how many tokens in the next step: continuous batching under a token budget.

One step mixes decodes and prefill chunks. The rules, all of which are deterministic:

- Requests are admitted in order of arrival, while there is a slot, budget, and room for all of the request's
  tokens (its blocks are taken at once) plus one block of growth for every request that is already running.
- Decodes go before prefill chunks, and the earlier arrival before the later. Only what they leave over of the
  budget admits others, so that every running request has its part in every step.
- When blocks run out, the earlier arrival has the older right: it preempts the latest arrivals, which give up
  their blocks, go back to the queue and recompute. The earliest request can therefore always go on, and a
  request that alone outgrows the pool ends with "length"; neither can wait for the other for ever.
- With host memory the preempted request's blocks are copied out instead, and copied back when its turn comes: it
  holds a slot from then on and computes again one step later. With a context, a request shares the context's blocks,
  and waits a step where these have to be loaded (see `traffic`). Contexts that nobody runs on give up theirs first.
- With a prefix cache a request starts with the blocks that are there already, found before any are allocated; one
  whose missing blocks another is about to compute is started afterwards (see `reuse`), and others may pass it.
- Without a KV cache a row is the whole prefix and is never cut, so not all may fit a step: who has waited
  longest goes first.
"""

from __future__ import annotations

import heapq
import time
from operator import attrgetter

from intaglio.errors import WorkerError
from intaglio.intake.planned_step import PlannedStep, SchedulerLimits
from intaglio.intake.reuse import PrefixReuse
from intaglio.intake.sequence import Sequence, Status
from intaglio.intake.step_plan import StepPlan
from intaglio.intake.traffic import BlockTraffic
from intaglio.state.block_pools import BlockPools
from intaglio.state.prefix_cache import CachedBlock
from intaglio.telemetry import Telemetry

# How many waiting requests one step passes over at most because their prefix is being computed.
_PASSED_OVER = 64
# Entries of ended requests that the queue may hold besides as many as are waiting.
_SLACK = 64

Row = tuple[Sequence, int, int]  # whose, tokens to compute, blocks newly taken
_arrival = attrgetter("arrival")
_request_id = attrgetter("request_id")


class Planner:
    """Admission, budget, blocks and preemption. Plain Python; it neither computes nor waits."""

    def __init__(
        self,
        limits: SchedulerLimits,
        pools: BlockPools | None,
        telemetry: Telemetry,
        reuse: PrefixReuse | None = None,
        traffic: BlockTraffic | None = None,
    ) -> None:
        """pools None: without a KV cache. reuse None: without a prefix cache. traffic None: no block ever moves."""
        self.limits = limits
        self.pools = pools
        self.reuse = reuse
        self.traffic = traffic
        if traffic is not None:
            traffic.bind(self._arrived, self._lost)
        self._telemetry = telemetry
        self._max_len = pools.capacity_tokens if pools else limits.token_budget
        self._live: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._arriving: dict[str, Sequence] = {}  # hold a slot, and wait for their blocks from host memory
        self._heap: list[tuple[int, Sequence]] = []
        self._arrivals = 0
        self._step = 0
        self._allocate_ns = 0

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running) + len(self._arriving)

    @property
    def waiting(self) -> int:
        """Admitted requests without a slot."""
        return len(self._live) - self.running

    @property
    def has_work(self) -> bool:
        """Whether any admitted request is unfinished, or blocks are to be moved."""
        return bool(self._live) or (self.traffic is not None and self.traffic.pending)

    def plan(self) -> PlannedStep | None:
        """The next step, or None when there is nothing to compute. Complete, fail or cancel it afterwards."""
        self._allocate_ns = 0
        rows = self._plan_cached() if self.pools else self._plan_uncached()
        if not rows and not (self.traffic is not None and self.traffic.pending):
            return None
        self._step += 1
        moves = self.traffic.take(self._step) if self.traffic is not None else ()
        sequences, plans, new_blocks, use_cache = {}, [], {}, self.pools is not None
        for sequence, count, new in rows:
            sequence.last_step = sequence.in_flight = self._step
            sequences[sequence.request_id] = sequence
            new_blocks[sequence.request_id] = new
            plans.append(sequence.row(count, use_cache=use_cache))
        plans.sort(key=_request_id)
        step = StepPlan(step=self._step, rows=tuple(plans), use_cache=use_cache, moves=moves)
        movers = self.traffic.transfers.movers(self._step) if moves and self.traffic is not None else {}
        return PlannedStep(step, sequences, new_blocks, self._allocate_ns, movers)

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
        self._make_room(blocks)
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
            if count:  # who comes back from host memory took no part of the budget, so it may not do for all
                chosen.append((sequence, count))
        return self._place(chosen)

    def _place(self, chosen: list[tuple[Sequence, int]]) -> list[Row]:
        """Give every chosen row its blocks, earliest arrival first. A row that gets none waits."""
        pools, rows = self._pools(), []
        for sequence, count in sorted(chosen, key=lambda choice: choice[0].arrival):
            if sequence.status is not Status.RUNNING:
                continue  # preempted by an earlier one
            need = pools.blocks_for(sequence.computed + count) - sequence.blocks_held
            self._make_room(need)
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
        while budget > 0 and self.running < self.limits.max_running and (head := self._head()):
            if self.traffic is not None and self.traffic.swapped(head):
                if not self._bring_back(head):
                    break
                continue
            found = self.reuse.find(head) if self.reuse and head.context is None else []
            if found is None:
                if len(passed) == _PASSED_OVER:
                    break
                passed.append(heapq.heappop(self._heap)[1])
                continue
            need = self._room_for(head, found)
            if need is None or not self._place_context(head):
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
        if self.traffic is not None:
            need -= self.traffic.shared(head)
            wanted = -1
            # A context that gives up blocks may be what kept some of the found ones from being unused.
            while wanted < need + self.running + self._unused(found):
                wanted = need + self.running + self._unused(found)
                self.traffic.make_room(wanted, head)
        free = pools.available - self._unused(found)
        if need + self.running > free and (self.running or need > free):
            return None
        return need

    def _unused(self, found: list[CachedBlock]) -> int:
        """How many of the found blocks count as available, and will not be once the request has them."""
        return self.reuse.cache.idle(found) if self.reuse else 0

    def _make_room(self, count: int) -> None:
        if self.traffic is not None:
            self.traffic.make_room(count)

    def _place_context(self, head: Sequence) -> bool:
        """Whether the request can start: it has its context's blocks, or has none to wait for."""
        return head.context is None or self.traffic is None or self.traffic.place(head)

    def _bring_back(self, head: Sequence) -> bool:
        """Begin to copy a preempted request's blocks back. False: no room yet, or they are still going out."""
        traffic = self.traffic
        need = self._room_for(head, []) if traffic is not None and traffic.ready(head) else None
        if need is None or traffic is None:
            return False
        heapq.heappop(self._heap)
        head.status = Status.RUNNING
        self._arriving[head.request_id] = head
        traffic.bring_back(head, need)
        return True

    def _arrived(self, sequence: Sequence) -> None:
        """Its blocks are back: it computes from the next step on."""
        del self._arriving[sequence.request_id]
        self._running[sequence.request_id] = sequence

    def _lost(self, sequence: Sequence) -> None:
        """Its copy cannot be used: it computes everything again, when its turn comes."""
        sequence.lost, sequence.computed = sequence.computed, 0
        if self._arriving.pop(sequence.request_id, None) is not None:
            sequence.status = Status.WAITING
            heapq.heappush(self._heap, (sequence.arrival, sequence))

    def _by_turn(self) -> list[Sequence]:
        return sorted(self._running.values(), key=lambda s: (s.last_step, s.remaining > 1, s.arrival))

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        return min(sequence.remaining, self.limits.prefill_chunk or budget, budget)

    def _head(self) -> Sequence | None:
        while self._heap and self._heap[0][1].status is not Status.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def _forget_waiting(self) -> None:
        """A waiting request ends. Such entries are cleared away before they outnumber the waiting ones by far."""
        if len(self._heap) > 2 * self.waiting + _SLACK:
            self._heap = [entry for entry in self._heap if entry[1].status is Status.WAITING]
            heapq.heapify(self._heap)

    def _start(self, head: Sequence, found: list[CachedBlock]) -> None:
        heapq.heappop(self._heap)
        head.status = Status.RUNNING
        head.last_step = self._step
        self._running[head.request_id] = head
        if self.reuse and head.context is None:
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
        kept = self.traffic is not None and self.traffic.swap_out(victim)
        self._release(victim)
        del self._running[victim.request_id]
        if not kept:
            victim.lost, victim.computed = victim.computed, 0
        self._telemetry.counters.add("preemptions")
        self._telemetry.event(
            "preemption", request_id=victim.request_id, tokens_lost=victim.lost, swapped=kept
        )
        victim.preemptions += 1
        victim.status = Status.WAITING
        heapq.heappush(self._heap, (victim.arrival, victim))

    def _release(self, sequence: Sequence) -> None:
        if self.pools and sequence.block_tables:
            self.pools.release(sequence.block_tables, hold_step=sequence.in_flight)
        if self.reuse:
            self.reuse.leave(sequence)
        sequence.drop_blocks()

    def _pools(self) -> BlockPools:
        if self.pools is None:
            raise WorkerError("blocks are asked for without a KV cache")
        return self.pools
