"""Where each request's time went: spans of the four stages, closed over the request's whole life.

Recording appends one small tuple per step; spans are made when they are drained. For every request the wall
times of its spans, in order, cover the time from its enqueueing to its end without gap or overlap:

    input    queue (waiting for a step, also between steps), tokenize, schedule (planning the step)
    state    allocate (taking KV blocks, inside planning), transfer (moving blocks to or from host memory or files)
    compute  prefill, decode (by the phase of the request), injected (the known delay of a control)
    output   sample, detokenize, stream (making and delivering events)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from intaglio.telemetry import Counters


@dataclass(frozen=True, slots=True)
class StageSpan:
    """One request's part of one phase. wall_ns is the time that passed for the request (a shared step counts
    whole for each of its requests), share_ns its part of that time, by tokens. step is None outside steps."""

    step: int | None
    request_id: str
    stage: str
    phase: str
    start_ns: int
    wall_ns: int
    share_ns: int
    tokens: int = 0
    bytes: int = 0
    flops: int = 0


class RowTrace(NamedTuple):
    """One request's part of a step (a tuple: one is made for every row of every step).

    request_id is empty for a request that was aborted while the step ran."""

    request_id: str
    phase: str
    tokens: int
    committed: int
    new_blocks: int
    detokenize_ns: int


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step's times on the monotonic clock, and what it did.

    start, planned, computed, delayed, done: step begun, plan ready, workers' answer there, injected delay
    over, events stamped. allocate_ns lies inside planning; of computing, move_ns is the beginning (moving blocks)
    and sample_ns the end. movers: requests without a row whose blocks moved, and the bytes of each.
    """

    step: int
    start: int
    planned: int
    computed: int
    delayed: int
    done: int
    allocate_ns: int
    sample_ns: int
    block_bytes: int
    kv_bytes: int
    flops: int
    rows: tuple[RowTrace, ...]
    move_ns: int = 0
    movers: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Opened:
    request_id: str
    enqueued_ns: int
    tokenize: tuple[int, int] | None
    tokens: int


@dataclass(frozen=True, slots=True)
class _Closed:
    request_id: str
    done_ns: int
    step: int | None
    step_start: int
    phase: str


class Trace:
    """The recorder of one engine. Switched off it keeps nothing. Not drained, it keeps the newest entries."""

    def __init__(self, counters: Counters, *, enabled: bool, limit: int = 100_000) -> None:
        self.enabled = enabled
        self._counters = counters
        self._limit = limit
        self._entries: deque[_Opened | _Closed | StepTrace] = deque(maxlen=limit)
        # Per live request: until when its time is accounted for.
        self._cursor: dict[str, int] = {}

    def opened(
        self, request_id: str, enqueued_ns: int, tokenize: tuple[int, int] | None, tokens: int
    ) -> None:
        """A request was admitted. tokenize: when its prompt's tokenisation began and ended, if there was one."""
        self._append(_Opened(request_id, enqueued_ns, tokenize, tokens))

    def stepped(self, step: StepTrace) -> None:
        """A step is over."""
        self._append(step)

    def closed(
        self, request_id: str, done_ns: int, *, step: int | None = None, step_start: int = 0, phase: str = ""
    ) -> None:
        """A request ended, of itself or by abort; `step`, `step_start`, `phase`: of the step running with it."""
        self._append(_Closed(request_id, done_ns, step, step_start, phase))

    def drain(self) -> list[StageSpan]:
        """The spans since the last call, in the order of events."""
        entries = list(self._entries)
        self._entries.clear()
        spans: list[StageSpan] = []
        for entry in entries:
            if isinstance(entry, StepTrace):
                spans.extend(self._step_spans(entry))
            elif isinstance(entry, _Opened):
                spans.extend(self._open_spans(entry))
            else:
                spans.extend(self._close_spans(entry))
        return spans

    def _append(self, entry: _Opened | _Closed | StepTrace) -> None:
        if not self.enabled:
            return
        if len(self._entries) == self._limit:
            self._counters.add("trace_dropped")
        self._entries.append(entry)

    def _open_spans(self, entry: _Opened) -> Iterator[StageSpan]:
        self._cursor[entry.request_id] = entry.enqueued_ns
        if entry.tokenize is not None:
            start, end = entry.tokenize
            yield from self._queued(entry.request_id, start)
            took = end - start
            yield StageSpan(
                None, entry.request_id, "input", "tokenize", start, took, took, tokens=entry.tokens
            )
            self._cursor[entry.request_id] = end

    def _close_spans(self, entry: _Closed) -> Iterator[StageSpan]:
        if entry.step is not None:
            yield from self._queued(entry.request_id, entry.step_start)
            took = entry.done_ns - entry.step_start
            if entry.request_id in self._cursor and took > 0:
                yield StageSpan(
                    entry.step, entry.request_id, "compute", entry.phase, entry.step_start, took, 0
                )
        else:
            yield from self._queued(entry.request_id, entry.done_ns)
        self._cursor.pop(entry.request_id, None)

    def _queued(self, request_id: str, until: int) -> Iterator[StageSpan]:
        """The time since the request was last accounted for is waiting."""
        since = self._cursor.get(request_id)
        if since is not None and until > since:
            yield StageSpan(None, request_id, "input", "queue", since, until - since, until - since)
            self._cursor[request_id] = until

    def _step_spans(self, s: StepTrace) -> Iterator[StageSpan]:
        tokens = [row.tokens for row in s.rows]
        committed = [row.committed for row in s.rows]
        emitting = committed if any(committed) else tokens
        blocks = [row.new_blocks for row in s.rows]
        detokenize = [row.detokenize_ns for row in s.rows]
        shares = {
            "schedule": _split(s.planned - s.start - s.allocate_ns, tokens),
            "allocate": _split(s.allocate_ns, blocks if any(blocks) else tokens),
            "transfer": _split(0 if s.movers else s.move_ns, tokens),
            "compute": _split(s.computed - s.planned - s.sample_ns - s.move_ns, tokens),
            "sample": _split(s.sample_ns, emitting),
            "injected": _split(s.delayed - s.computed, tokens),
            "detokenize": detokenize,
            "stream": _split(s.done - s.delayed - sum(detokenize), emitting),
            "kv_bytes": _split(s.kv_bytes, tokens),
            "flops": _split(s.flops, tokens),
        }
        for index, row in enumerate(s.rows):
            if row.request_id not in self._cursor:
                continue  # aborted while the step ran: accounted for up to the abort
            yield from self._queued(row.request_id, s.start)
            yield from self._row_spans(s, row, {name: share[index] for name, share in shares.items()})
            self._cursor[row.request_id] = s.done
        yield from self._mover_spans(s)

    def _mover_spans(self, s: StepTrace) -> Iterator[StageSpan]:
        """For a request whose blocks move, the whole step is transfer; its part of it is the moving alone."""
        sizes = [size for _, size in s.movers]
        for (request_id, size), share in zip(s.movers, _split(s.move_ns, sizes)):
            if request_id in self._cursor:
                yield from self._queued(request_id, s.start)
                wall = s.done - s.start
                yield StageSpan(s.step, request_id, "state", "transfer", s.start, wall, share, bytes=size)
                self._cursor[request_id] = s.done

    def _row_spans(self, s: StepTrace, row: RowTrace, share: dict[str, int]) -> Iterator[StageSpan]:
        detokenize = sum(other.detokenize_ns for other in s.rows)
        phases = (
            ("input", "schedule", s.planned - s.start - s.allocate_ns, 0, 0),
            ("state", "allocate", s.allocate_ns, 0, row.new_blocks * s.block_bytes),
            ("state", "transfer", s.move_ns, 0, 0),
            (
                "compute",
                row.phase,
                s.computed - s.planned - s.sample_ns - s.move_ns,
                row.tokens,
                share["kv_bytes"],
            ),
            ("output", "sample", s.sample_ns, row.committed, 0),
            ("compute", "injected", s.delayed - s.computed, 0, 0),
            ("output", "detokenize", detokenize, row.committed, 0),
            ("output", "stream", s.done - s.delayed - detokenize, row.committed, 0),
        )
        start = s.start
        for stage, phase, wall, tokens, size in phases:
            computing = stage == "compute" and phase != "injected"
            if wall > 0:
                own = share["compute" if computing else phase]
                flops = share["flops"] if computing else 0
                yield StageSpan(s.step, row.request_id, stage, phase, start, wall, own, tokens, size, flops)
            start += wall


def _split(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole parts by weight; the parts add up to it exactly (to 0 without any weight)."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    parts, before = [], 0
    for weight in weights:
        after = before + weight
        parts.append(total * after // whole - total * before // whole)
        before = after
    return parts
