"""Committed tokens become events and outputs, and each event reaches the one who asked for its request."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass

from intaglio.errors import RequestError, UnknownRequestError
from intaglio.intake.request import RequestOutput, SamplingParams, TokenEvent
from intaglio.intake.sequence import Sequence
from intaglio.intake.step_plan import RowResult
from intaglio.output.detokenizer import Codec, Detokenizer
from intaglio.telemetry import Telemetry


@dataclass(slots=True)
class _Open:
    """An admitted request that has not ended."""

    output: RequestOutput
    text: Detokenizer
    pieces: list[str]


class OutputHub:
    """Outputs of admitted requests, and the delivery of their events.

    Every admitted request yields exactly one event with a finish reason. Events of a subscribed request go to
    its subscriber, all others to whoever calls `collect`. An output is kept until taken; beyond `keep` finished
    ones the oldest is dropped and counted.
    """

    def __init__(self, codec: Codec, telemetry: Telemetry, *, keep: int = 65_536) -> None:
        self._codec = codec
        self._telemetry = telemetry
        self._keep = keep
        self._open: dict[str, _Open] = {}
        self._done: dict[str, RequestOutput] = {}
        self._subscribers: dict[str, deque[TokenEvent]] = {}
        self._backlog: list[TokenEvent] = []
        self._step_events: list[TokenEvent] = []
        # Per request of the step being committed: tokens taken, and nanoseconds spent on their text.
        self.work: dict[str, tuple[int, int]] = {}

    @property
    def undelivered(self) -> bool:
        """Whether `collect` has something to give."""
        return bool(self._backlog)

    def knows(self, request_id: str) -> bool:
        """Whether the id is live, or finished and its output not yet taken."""
        return request_id in self._open or request_id in self._done

    def open(
        self,
        request_id: str,
        prompt: Items[int],
        params: SamplingParams,
        seed: int,
        *,
        enqueued_ns: int,
        want_logits: bool,
    ) -> None:
        """Start an admitted request's output."""
        output = RequestOutput(request_id, list(prompt), seed=seed, enqueued_ns=enqueued_ns)
        output.logits = [] if want_logits else None
        self._open[request_id] = _Open(output, Detokenizer(self._codec, prompt, params.stop), [])

    def subscribe(self, request_id: str, queue: deque[TokenEvent]) -> None:
        """Put all coming events of the request into `queue`, up to and including its last one."""
        self._subscribers[request_id] = queue

    def token(self, sequence: Sequence, row: RowResult, index: int, reason: str | None) -> str | None:
        """Take a committed token (scheduler.Sink): the finish reason is `reason`, or "stop" at a stop string."""
        started = time.perf_counter_ns()
        entry = self._open[sequence.request_id]
        token = row.tokens[index]
        text = ""
        if reason != "stop":  # an end token is no text
            text, found = entry.text.push(token)
            reason = "stop" if found else reason
        if reason is not None:
            text += entry.text.finish()
        tokens, spent = self.work.get(sequence.request_id, (0, 0))
        self.work[sequence.request_id] = (tokens + 1, spent + time.perf_counter_ns() - started)
        event = TokenEvent(sequence.request_id, len(entry.output.token_ids), token, text, 0)
        event.finish_reason = reason
        self._record(entry, row, index, event)
        self._step_events.append(event)
        if reason is not None:
            self._close(entry, sequence, reason, None)
        return reason

    def failed(self, sequence: Sequence, message: str) -> None:
        """End a request with an error (scheduler.Sink)."""
        error = RequestError(f"{message}; send the request again")
        self._telemetry.event("request_failed", request_id=sequence.request_id, message=message)
        self._end(sequence, "error", error)

    def aborted(self, sequence: Sequence) -> None:
        """End a request because the user no longer wants it."""
        self._telemetry.event(
            "abort", request_id=sequence.request_id, in_flight=sequence.in_flight is not None
        )
        self._end(sequence, "abort", None)

    def seal(self, now_ns: int) -> None:
        """Stamp and deliver the events since the last call: this is when they can be seen."""
        for event in self._step_events:
            event.time_ns = now_ns
            entry = self._open.get(event.request_id)
            output = entry.output if entry else self._done.get(event.request_id)
            if output is not None:
                if event.token_id is not None:
                    output.token_times_ns.append(now_ns)
                if event.finish_reason is not None:
                    output.done_ns = now_ns
            self._deliver(event)
        self._step_events = []
        self.work = {}
        while len(self._done) > self._keep:
            del self._done[next(iter(self._done))]
            self._telemetry.counters.add("outputs_dropped")

    def collect(self) -> list[TokenEvent]:
        """The events of requests without a subscriber since the last call, oldest first."""
        events, self._backlog = self._backlog, []
        return events

    def take(self, request_id: str) -> RequestOutput:
        """A finished request's output, once. Raises UnknownRequestError."""
        if not isinstance(request_id, str):
            raise UnknownRequestError(f"no request has the id {ascii(request_id)[:60]}", field="request_id")
        if request_id in self._open:
            raise UnknownRequestError(
                f"request '{request_id}' has not ended; step() the engine on, or abort it", field="request_id"
            )
        output = self._done.pop(request_id, None)
        if output is None:
            raise UnknownRequestError(
                f"no output for request '{request_id}'; an output can be taken once", field="request_id"
            )
        return output

    def discard(self, request_id: str) -> None:
        """Forget a finished output that nobody will take."""
        self._done.pop(request_id, None)

    def _deliver(self, event: TokenEvent) -> None:
        queue = self._subscribers.get(event.request_id)
        (self._backlog if queue is None else queue).append(event)
        if event.finish_reason is not None:
            self._subscribers.pop(event.request_id, None)

    def _record(self, entry: _Open, row: RowResult, index: int, event: TokenEvent) -> None:
        output = entry.output
        output.token_ids.append(row.tokens[index])
        entry.pieces.append(event.text)
        if index < len(row.logprobs):
            event.logprob = row.logprobs[index]
            output.logprobs.append(event.logprob)
        if index < len(row.margins):
            event.margin = row.margins[index]
            output.margins.append(event.margin)
        if index < len(row.top_logprobs):
            event.top_logprobs = dict(row.top_logprobs[index])
            output.top_logprobs.append(event.top_logprobs)
        if output.logits is not None and row.logits is not None:
            output.logits.append(row.logits[index])

    def _end(self, sequence: Sequence, reason: str, error: RequestError | None) -> None:
        entry = self._open[sequence.request_id]
        text = entry.text.finish()
        entry.pieces.append(text)
        event = TokenEvent(sequence.request_id, len(entry.output.token_ids), None, text, 0)
        event.finish_reason, event.error = reason, error
        self._step_events.append(event)
        self._close(entry, sequence, reason, error)

    def _close(self, entry: _Open, sequence: Sequence, reason: str, error: RequestError | None) -> None:
        output = entry.output
        output.text = "".join(entry.pieces)
        output.finish_reason = reason
        output.error = error
        output.tokens_computed = sequence.tokens_computed
        output.cached_tokens = sequence.cached_tokens
        del self._open[output.request_id]
        self._done[output.request_id] = output
        names = {"abort": "requests_aborted", "error": "requests_failed"}
        self._telemetry.counters.add(names.get(reason, "requests_finished"))
