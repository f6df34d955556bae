"""Aborts, failing steps, interrupts and lying workers: whoever is not concerned never notices."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import pytest

from intaglio.intake.request import RequestOutput, SamplingParams
from intaglio.intake.step_plan import RowResult, StepPlan, StepResult
from intaglio.state.block_pool import BlockState

LONG = SamplingParams(max_tokens=40, ignore_eos=True)


def run(engine: Any, *, most: int = 2000) -> dict[str, RequestOutput]:
    """Step to the end and return the outputs by id."""
    ended = []
    for _ in range(most):
        if not engine.has_work:
            break
        ended += [event.request_id for event in engine.step() if event.finish_reason]
        engine.check_integrity()
    assert not engine.has_work
    assert len(ended) == len(set(ended))
    return {request_id: engine.output(request_id) for request_id in ended}


def kinds(engine: Any) -> list[str]:
    return [event["kind"] for event in engine.drain_events()]


def test_abort_while_the_step_is_in_flight_keeps_the_blocks_until_it_ends(
    fake: ModuleType, make: Any
) -> None:
    engine = make()
    engine.add([97] * 9, LONG, request_id="a")
    engine.add([98] * 5, LONG, request_id="b")
    engine.step()
    pools = engine._pools.pools
    seen: list[tuple[bool, int, int]] = []

    def abort_from_another_thread(_: StepPlan) -> None:
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(engine.abort("a")))
        thread.start()
        thread.join(timeout=30)  # the lock must be free while a step computes
        seen.append((answers == [True], pools[0].count(BlockState.QUARANTINED), pools[0].free))

    before = pools[0].free
    engine.fake.during = abort_from_another_thread
    events = engine.step()
    engine.fake.during = None
    assert seen == [(True, 3, before)]
    assert [pool.count(BlockState.QUARANTINED) for pool in pools] == [0, 0]
    assert pools[0].free == before + 3
    ended = [event for event in events if event.finish_reason]
    assert [(event.request_id, event.token_id, event.finish_reason) for event in ended] == [
        ("a", None, "abort")
    ]
    assert engine.counters()["tokens_discarded"] == 1
    assert run(engine)["b"].token_ids == fake.reference([98] * 5, LONG)[0]
    assert len(engine.output("a").token_ids) == 1


def test_a_failing_step_ends_its_own_requests_and_no_others(fake: ModuleType, make: Any) -> None:
    engine = make(scheduler__max_running=1)
    engine.add([97] * 5, LONG, request_id="a")
    engine.add([98] * 5, LONG, request_id="b")
    engine.fake.fail = {3}
    outputs = run(engine)
    assert outputs["a"].finish_reason == "error"
    assert "planned failure" in str(outputs["a"].error)
    assert outputs["a"].token_ids == fake.reference([97] * 5, LONG)[0][:2]
    assert outputs["b"].token_ids == fake.reference([98] * 5, LONG)[0]
    counters = engine.counters()
    assert (counters["requests_failed"], counters["requests_finished"], counters["step_failures"]) == (
        1,
        1,
        1,
    )
    assert engine.gauges()["kv_blocks_used"] == 0


def test_an_error_of_one_row_leaves_the_rest_of_the_step_alone(fake: ModuleType, make: Any) -> None:
    engine = make()
    engine.add([97] * 5, LONG, request_id="a")
    engine.add([98] * 5, LONG, request_id="b")
    engine.step()
    engine.fake.row_error = {"a"}
    outputs = run(engine)
    assert (outputs["a"].finish_reason, len(outputs["a"].token_ids)) == ("error", 1)
    assert outputs["b"].token_ids == fake.reference([98] * 5, LONG)[0]
    assert kinds(engine) == ["request_failed"]


def test_an_interrupted_step_is_repeated_and_nothing_is_lost(fake: ModuleType, make: Any) -> None:
    engine = make()
    engine.add([97] * 5, LONG, request_id="a")
    engine.step()

    def interrupt(_: StepPlan) -> None:
        raise KeyboardInterrupt

    engine.fake.during = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.fake.during = None
    engine.check_integrity()
    engine.add([98] * 5, LONG, request_id="b")
    engine.step()
    assert engine.abort("b")
    assert engine.gauges()["kv_blocks_used"] == 2  # b's are free: no step is in flight with it
    assert run(engine)["a"].token_ids == fake.reference([97] * 5, LONG)[0]


def test_a_request_aborted_in_an_interrupted_step_gives_its_blocks_back(make: Any) -> None:
    engine = make()
    engine.add([97] * 5, LONG, request_id="a")

    def abort_then_interrupt(_: StepPlan) -> None:
        engine.abort("a")
        raise KeyboardInterrupt

    engine.fake.during = abort_then_interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.fake.during = None
    engine.check_integrity()
    assert engine.gauges()["kv_blocks_used"] == 0
    assert [event.finish_reason for event in engine.step()] == ["abort"]
    assert not engine.has_work


@pytest.mark.parametrize("answer", ["token outside", "too many", "none", "wrong step", "wrong rows"])
def test_a_worker_that_breaks_the_contract_is_caught(fake: ModuleType, make: Any, answer: str) -> None:
    engine = make()
    engine.add([97] * 5, LONG, request_id="a")
    honest = engine.fake.execute

    def lie(plan: StepPlan) -> StepResult:
        result = honest(plan)
        tokens = {"token outside": (fake.VOCAB,), "too many": (97, 98), "none": ()}.get(answer, (97,))
        name = "z" if answer == "wrong rows" else "a"
        step = plan.step + (answer == "wrong step")
        return StepResult(step, result.digest, (RowResult(name, tokens=tokens),))

    engine._stepper._runner_execute = lie
    (event,) = engine.step()
    assert event.finish_reason == "error"
    assert event.error is not None
    assert engine.gauges()["kv_blocks_used"] == 0
    assert not engine.has_work
