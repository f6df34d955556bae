"""The one thread that drives an engine, for any number of clients on an event loop."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict

from intaglio.engine import Engine
from intaglio.errors import IntaglioError, UnknownRequestError
from intaglio.intake.request import Prompt, RequestOutput, SamplingParams, TokenEvent
from intaglio.serve import channel
from intaglio.serve.channel import Channel, Update

_log = logging.getLogger("intaglio.serve")

# How often the engine's own logs are folded into sums, so that a server may run for months.
_FOLD_S = 1.0


class EngineDriver:
    """Steps an engine while it has work and sleeps while it has none. Submit and abort from any thread.

    Every submitted request gets its events, the last of them with its output, unless it was dropped before.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sinks: dict[str, Channel] = {}
        self._wake = threading.Condition()
        self._stopping = False
        self._failure = ""
        self._step_began = 0.0
        self._folded = 0.0
        self.stage_seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.event_counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="intaglio-engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str:
        """Why the thread ended before it was asked to, or ""."""
        return self._failure

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stopping

    @property
    def stalled_s(self) -> float:
        """How long the running step has taken so far; 0 between steps."""
        began = self._step_began
        return time.monotonic() - began if began else 0.0

    def submit(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        sink: Channel,
        *,
        tenant: str,
        context: str | None,
    ) -> None:
        """Admit a request whose events go to `sink`. Raises the engine's refusal, and leaves nothing behind.

        It tokenises, so call it from a thread that may take its time.
        """
        if self._failure or self._stopping:
            raise IntaglioError(f"the engine is not running: {self._failure or 'it is being closed'}")
        self._sinks[request_id] = sink
        try:
            self.engine.add(prompt, params, request_id=request_id, tenant=tenant, context=context)
        except BaseException:
            self._sinks.pop(request_id, None)
            raise
        if request_id not in self._sinks:  # dropped while it was being admitted
            self.engine.abort(request_id)
        self._notify()

    def drop(self, request_id: str) -> None:
        """Nobody wants this request's events any more: end it, at once and without a word."""
        if self._sinks.pop(request_id, None) is not None and self.engine.abort(request_id):
            self._notify()

    def close(self, timeout_s: float) -> bool:
        """End what is live, stop the thread and close the engine. False if a step did not end in time."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("the running step did not end within %g s; its engine is left behind", timeout_s)
            return False
        self.engine.close()
        return True

    # The engine's thread

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._step_began = time.monotonic()
                events = self.engine.step()
                self._step_began = 0.0
                self._deliver(events)
                self._fold(force=not self.engine.has_work)
        except Exception as error:
            self._step_began = 0.0
            self._failure = f"{type(error).__name__}: {error}"
            _log.exception("the engine failed; the server answers nothing from now on")
        self._end_all()

    def _wait_for_work(self) -> bool:
        # Whoever adds work notifies after adding it, under this lock, so no work is missed.
        with self._wake:
            while not self._stopping and not self.engine.has_work:
                self._wake.wait()
            return not self._stopping

    def _deliver(self, events: list[TokenEvent]) -> None:
        updates = []
        for event in events:
            last = event.finish_reason is not None
            output = self._take(event.request_id) if last else None
            sink = self._sinks.pop(event.request_id, None) if last else self._sinks.get(event.request_id)
            if sink is not None:
                updates.append((sink, Update(event, output)))
        if updates:
            channel.post(updates)

    def _take(self, request_id: str) -> RequestOutput | None:
        # Taken also when nobody reads it: an output that is not taken is kept.
        try:
            return self.engine.output(request_id)
        except UnknownRequestError:
            return None

    def _fold(self, *, force: bool) -> None:
        """Add up the engine's spans and events, which would otherwise be kept until somebody drains them."""
        now = time.monotonic()
        if not force and now - self._folded < _FOLD_S:
            return
        self._folded = now
        for span in self.engine.drain_spans():
            self.stage_seconds[span.stage, span.phase] += span.share_ns / 1e9
        for event in self.engine.drain_events():
            self.event_counts[event["kind"]] += 1
        self.engine.drain_gauges()

    def _end_all(self) -> None:
        """Give every request that is still live its last event."""
        for request_id in list(self._sinks):
            self.engine.abort(request_id)
        try:
            self._deliver(self.engine.step())
        except Exception as error:  # the engine is beyond delivering; its clients still need an end
            _log.error("no last step: %s", error)
        left = list(self._sinks.items())
        self._sinks.clear()
        now = time.perf_counter_ns()
        ends = [
            (sink, Update(TokenEvent(name, 0, None, "", now, finish_reason="abort"), None))
            for name, sink in left
        ]
        channel.post(ends)
