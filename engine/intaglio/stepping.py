"""One engine step: plan, let the workers compute, commit, deliver, trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Set

from intaglio.config_corner import Corner
from intaglio.errors import WorkerError
from intaglio.intake.planned_step import PlannedStep
from intaglio.intake.scheduler import Scheduler
from intaglio.intake.sequence import Status
from intaglio.intake.step_plan import StepPlan, StepResult
from intaglio.output.stream import OutputHub
from intaglio.telemetry import Telemetry
from intaglio.trace import RowTrace, StepTrace, Trace

# Sleeping is only this exact; the rest of an injected delay is waited for actively.
_SLEEP_SLACK_NS = 300_000

Outcome = StepResult | Exception


class Stepper:
    """Drives steps, one at a time. All state is touched under `lock`, which is free while a step computes."""

    def __init__(
        self,
        scheduler: Scheduler,
        hub: OutputHub,
        telemetry: Telemetry,
        trace: Trace,
        lock: threading.RLock,
        execute: Callable[[StepPlan], StepResult],
        gauges: Callable[[], dict[str, int]],
        *,
        delay_us: int,
        corner: Corner | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._hub = hub
        self._telemetry = telemetry
        self._trace = trace
        self._lock = lock
        self._runner_execute = execute
        self._gauges = gauges
        self._delay_ns = 1000 * delay_us
        self._corner = corner
        # Stamps of the running step.
        self.started = 0
        self._planned = self._computed = self._delayed = 0

    def step(self) -> None:
        """Make one step, if there is one to make. Its events are with the hub."""
        with self._lock:
            self.started = time.perf_counter_ns()
            planned = self._scheduler.plan()
            self._planned = time.perf_counter_ns()
            if planned is None:
                return
            self._telemetry.gauge(self._planned, self._gauges())
        outcome = self._execute(planned)
        with self._lock:
            self._commit(planned, outcome)

    def _execute(self, planned: PlannedStep) -> Outcome:
        outcome: Outcome
        try:
            outcome = self._runner_execute(planned.plan)
            self._computed = self._delayed = time.perf_counter_ns()
            delay_ns = self._delay_ns
            if self._corner is not None:
                delay_ns += self._corner.delay_ns([s.prompt_len for s in planned.sequences.values()])
            if delay_ns:
                _wait_until(self._computed + delay_ns)
                self._delayed = time.perf_counter_ns()
        except Exception as error:  # whatever it is, it ends this step's requests and no others
            self._computed = self._delayed = time.perf_counter_ns()
            outcome = error
        except BaseException:
            with self._lock:
                self._scheduler.cancel(planned)
            raise
        return outcome

    def _commit(self, planned: PlannedStep, outcome: Outcome) -> None:
        self._telemetry.counters.add("steps")
        self._telemetry.counters.add("injected_ns", self._delayed - self._computed)
        # Aborted while the step ran: accounted for up to then, and the id may already be another request's.
        gone = {name for name, s in planned.sequences.items() if s.status is Status.FINISHED}
        if isinstance(outcome, StepResult):
            try:
                self._scheduler.complete(planned, outcome, self._hub)
                self._count(outcome)
            except WorkerError as error:
                outcome = error
        if isinstance(outcome, Exception):
            message = f"{type(outcome).__name__}: {outcome}"
            self._telemetry.counters.add("step_failures")
            self._telemetry.event("step_failed", step=planned.plan.step, message=message)
            self._scheduler.fail(planned, f"the step failed: {message}", self._hub)
        work = self._hub.work
        done = time.perf_counter_ns()
        self._hub.seal(done)
        if self._trace.enabled:
            self._trace_step(planned, outcome, work, done, gone)
        if not self._scheduler.has_work:
            self._telemetry.gauge(done, self._gauges())
            if pools := self._scheduler.pools:
                self._telemetry.counters.reach("kv_bytes_kept", pools.held_bytes)

    def _count(self, result: StepResult) -> None:
        counters = self._telemetry.counters
        counters.add("tokens_computed", result.tokens_computed)
        counters.add("kv_bytes_written", result.kv_bytes_written)
        counters.add("kv_bytes_read", result.kv_bytes_read)
        counters.add("flops", result.flops)
        for kind, detail in result.events:
            self._telemetry.event(kind, step=result.step, detail=detail)

    def _trace_step(
        self,
        planned: PlannedStep,
        outcome: Outcome,
        work: Mapping[str, tuple[int, int]],
        done: int,
        gone: Set[str],
    ) -> None:
        result = outcome if isinstance(outcome, StepResult) else StepResult(planned.plan.step, "", ())
        pools = self._scheduler.pools
        moved_bytes = pools.block_bytes // len(pools.pools) if pools else 0
        rows = []
        for row in planned.plan.rows:
            committed, spent = work.get(row.request_id, (0, 0))
            new = planned.new_blocks[row.request_id]
            name = "" if row.request_id in gone else row.request_id
            rows.append(RowTrace(name, row.phase, len(row.tokens), committed, new, spent))
        self._trace.stepped(
            StepTrace(
                step=planned.plan.step,
                start=self.started,
                planned=self._planned,
                computed=self._computed,
                delayed=self._delayed,
                done=done,
                allocate_ns=planned.allocate_ns,
                sample_ns=sum(took for phase, _, took in result.spans if phase == "sample"),
                block_bytes=pools.block_bytes if pools else 0,
                kv_bytes=result.kv_bytes_written + result.kv_bytes_read,
                flops=result.flops,
                rows=tuple(rows),
                move_ns=sum(took for phase, _, took in result.spans if phase == "move"),
                movers=tuple((name, count * moved_bytes) for name, count in planned.movers.items()),
            )
        )
        for request_id in planned.sequences:
            if request_id not in gone and self._scheduler.get(request_id) is None:
                self._trace.closed(request_id, done)


def _wait_until(deadline_ns: int) -> None:
    left = deadline_ns - time.perf_counter_ns()
    if left > _SLEEP_SLACK_NS:
        time.sleep((left - _SLEEP_SLACK_NS) / 1e9)
    while time.perf_counter_ns() < deadline_ns:
        pass
