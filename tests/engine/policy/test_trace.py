"""The trace closes: every nanosecond of a request's life is in exactly one of its spans."""

from __future__ import annotations

import time
from collections import defaultdict
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.config import Scalar, from_flat
from intaglio.intake.request import RequestOutput, SamplingParams
from intaglio.telemetry import Counters
from intaglio.trace import RowTrace, StageSpan, StepTrace, Trace

PHASES = {
    "input": {"queue", "tokenize", "schedule"},
    "state": {"allocate"},
    "compute": {"prefill", "decode", "injected"},
    "output": {"sample", "detokenize", "stream"},
}


def build(fake: ModuleType, **values: Scalar) -> Any:
    flat: dict[str, Scalar] = {
        "kv_cache.block_tokens": 4,
        "kv_cache.blocks": 12,
        "scheduler.prefill_chunk": 5,
    }
    return fake.make_engine(from_flat(flat | {name.replace("__", "."): v for name, v in values.items()}))


def check_closed(spans: list[StageSpan], output: RequestOutput) -> None:
    """One span begins where the one before it ends, from the enqueueing to the end."""
    own = [span for span in spans if span.request_id == output.request_id]
    at = output.enqueued_ns
    for span in own:
        assert span.start_ns == at, span
        assert span.wall_ns > 0
        assert span.phase in PHASES[span.stage]
        at += span.wall_ns
    assert at == output.done_ns
    assert sum(span.wall_ns for span in own) == output.done_ns - output.enqueued_ns


def check_shares(spans: list[StageSpan]) -> None:
    """What a step's requests share adds up to the step's time, once."""
    shares: dict[tuple[int, str], int] = defaultdict(int)
    walls: dict[tuple[int, str], set[int]] = defaultdict(set)
    for span in spans:
        if span.step is not None:
            phase = "compute" if span.phase in ("prefill", "decode") else span.phase
            shares[span.step, phase] += span.share_ns
            walls[span.step, phase].add(span.wall_ns)
    assert shares
    for key, total in shares.items():
        assert walls[key] == {total}, key


@pytest.mark.parametrize("enabled", [True, False])
def test_the_trace_closes_for_every_request_of_a_mixed_load(fake: ModuleType, enabled: bool) -> None:
    engine = build(fake, kv_cache__enabled=enabled, scheduler__max_running=3)
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    outputs = engine.generate(
        ["hello", list(b"a longer prompt"), "x", [97] * 30, "again", "and again"], params
    )
    spans = engine.trace.drain()
    for output in outputs:
        check_closed(spans, output)
        own = [span for span in spans if span.request_id == output.request_id]
        counts = defaultdict(int)
        for span in own:
            counts[span.phase] += span.tokens
        assert counts["prefill"] + counts["decode"] == output.tokens_computed
        assert counts["sample"] == counts["stream"] == 10
        assert counts["tokenize"] == (5 if output.prompt_token_ids == list(b"hello") else counts["tokenize"])
        assert ("allocate" in counts) == enabled
    check_shares(spans)
    computed = sum(span.tokens for span in spans if span.phase in ("prefill", "decode"))
    assert computed == engine.counters()["tokens_computed"]
    moved = sum(span.bytes for span in spans if span.stage == "compute")
    assert moved == engine.counters()["kv_bytes_written"]
    if enabled:
        taken = sum(span.bytes for span in spans if span.stage == "state")
        assert taken == engine.counters()["blocks_allocated"] // 2 * engine._pools.block_bytes
    assert engine.trace.drain() == []
    assert engine.trace._cursor == {}


def test_waiting_before_the_call_and_between_steps_is_queueing(fake: ModuleType) -> None:
    engine = build(fake)
    enqueued = time.perf_counter_ns() - 5_000_000
    engine.add("abc", SamplingParams(max_tokens=3, ignore_eos=True), request_id="a", enqueued_ns=enqueued)
    ended = []
    while engine.has_work:
        ended += engine.step()
    output = engine.output("a")
    assert output.enqueued_ns == enqueued
    spans = engine.trace.drain()
    check_closed(spans, output)
    assert spans[0].phase == "queue"
    assert spans[0].wall_ns >= 5_000_000
    assert sum(span.phase == "queue" for span in spans) >= 3


def test_without_a_first_output_token_it_is_prefill_and_afterwards_decode(fake: ModuleType) -> None:
    """Also where the kernel recomputes the whole prefix."""
    engine = build(fake, kv_cache__enabled=False)
    engine.generate([[97] * 6], SamplingParams(max_tokens=4, ignore_eos=True))
    compute = [(span.phase, span.tokens) for span in engine.trace.drain() if span.stage == "compute"]
    assert compute == [("prefill", 6), ("decode", 7), ("decode", 8), ("decode", 9)]


@pytest.mark.parametrize("in_flight", [False, True])
def test_an_aborted_request_is_accounted_for_up_to_its_abort(fake: ModuleType, in_flight: bool) -> None:
    engine = build(fake)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    engine.add("abc", params, request_id="a")
    engine.add("abd", params, request_id="b")
    engine.step()
    engine.step()
    if in_flight:
        engine.fake.during = lambda plan: engine.abort("a")
        engine.step()
        engine.fake.during = None
    else:
        engine.abort("a")
    while engine.has_work:
        engine.step()
    spans = engine.trace.drain()
    check_closed(spans, engine.output("a"))
    check_closed(spans, engine.output("b"))
    last = [span for span in spans if span.request_id == "a"][-1]
    assert (last.stage, last.phase) == (("compute", "decode") if in_flight else ("input", "queue"))


def test_the_trace_closes_through_preemption_and_failure(fake: ModuleType) -> None:
    engine = build(fake, kv_cache__blocks=6)
    params = SamplingParams(max_tokens=14, ignore_eos=True)
    for name in ("a", "b", "c"):
        engine.add([97] * 4, params, request_id=name)
    for _ in range(3):
        engine.step()
    engine.fake.row_error = {"c"}
    while engine.has_work:
        engine.step()
    spans = engine.trace.drain()
    assert engine.counters()["preemptions"] > 0
    for name in ("a", "b", "c"):
        check_closed(spans, engine.output(name))


def test_draining_in_between_changes_nothing(fake: ModuleType) -> None:
    engine = build(fake)
    engine.add("hello", SamplingParams(max_tokens=8, ignore_eos=True), request_id="a")
    spans = engine.trace.drain()
    while engine.has_work:
        engine.step()
        spans += engine.trace.drain()
    check_closed(spans, engine.output("a"))


def test_switched_off_it_keeps_nothing_and_outputs_are_the_same(fake: ModuleType) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=4)
    texts, spans = [], []
    for enabled in (True, False):
        engine = build(fake, trace__enabled=enabled)
        outputs = engine.generate(["one", "two", "three"], params)
        texts.append([(output.token_ids, output.text) for output in outputs])
        spans.append(len(engine.trace.drain()))
        assert len(engine.trace._entries) == 0
    assert texts[0] == texts[1]
    assert spans[0] > 0
    assert spans[1] == 0


def test_the_injected_delay_is_a_phase_of_its_own_in_every_step_that_did_work(fake: ModuleType) -> None:
    engine = build(fake, inject__step_delay_us=2000)
    assert engine.step() == []  # nothing to do: no delay either
    (output,) = engine.generate([[97, 98]], SamplingParams(max_tokens=5, ignore_eos=True))
    spans = engine.trace.drain()
    check_closed(spans, output)
    injected = [span for span in spans if span.phase == "injected"]
    assert len(injected) == 5
    assert all(span.stage == "compute" and span.wall_ns >= 2_000_000 for span in injected)
    assert engine.effective_config()["inject.step_delay_us"] == 2000
    assert engine.counters()["injected_ns"] == sum(span.wall_ns for span in injected)


def test_an_engine_that_injects_nothing_counts_nothing(fake: ModuleType) -> None:
    engine = build(fake)
    engine.generate([[97, 98]], SamplingParams(max_tokens=5, ignore_eos=True))
    assert (engine.counters()["injected_ns"], engine.counters()["steps"]) == (0, 5)


def test_a_trace_that_nobody_drains_is_bounded_and_says_what_it_dropped() -> None:
    counters = Counters()
    trace = Trace(counters, enabled=True, limit=4)
    for index in range(10):
        trace.opened(f"r{index}", index, None, 1)
    assert counters["trace_dropped"] == 6
    assert len(trace._entries) == 4


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(
    times=st.lists(st.integers(0, 1000), min_size=5, max_size=5),
    rows=st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=5
    ),
    numbers=st.tuples(st.integers(0, 10**6), st.integers(0, 10**12)),
)
def test_parts_add_up_exactly_whatever_the_numbers(
    times: list[int], rows: list[tuple[int, int, int]], numbers: tuple[int, int]
) -> None:
    start, planned, computed, delayed, done = (sum(times[: index + 1]) + 10 for index in range(5))
    trace = Trace(Counters(), enabled=True)
    made = tuple(
        RowTrace(f"r{index}", "decode", tokens, committed, blocks, (done - delayed) // 10)
        for index, (tokens, committed, blocks) in enumerate(rows)
    )
    for row in made:
        trace.opened(row.request_id, 10, None, 1)
    trace.stepped(
        StepTrace(
            1, start, planned, computed, delayed, done, (planned - start) // 2, (computed - planned) // 3,
            64, numbers[0], numbers[1], made,
        )
    )  # fmt: skip
    spans = trace.drain()
    for row in made:
        assert sum(s.wall_ns for s in spans if s.request_id == row.request_id) == done - 10
    for phase in ("schedule", "allocate", "decode", "injected", "stream"):
        own = [span for span in spans if span.phase == phase]
        if own:
            assert sum(span.share_ns for span in own) == own[0].wall_ns
    if any(span.phase == "decode" for span in spans):
        assert sum(span.bytes for span in spans if span.phase == "decode") == numbers[0]
        assert sum(span.flops for span in spans) == numbers[1]
