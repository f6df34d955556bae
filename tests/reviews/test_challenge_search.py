"""Counterexample search against planted corners, against nothing planted, and its bookkeeping."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from counterproof.errors import InputError
from counterproof_review.challenge.search import Budget, Outcome, decide, loss_p_value, search
from counterproof_review.challenge.shrink import Shrunk, explains, shrink
from counterproof_review.challenge.space import Cell, Space, read_space

DOCUMENT: dict[str, Any] = {
    "schema": "counterproof-challenge-space/1",
    "dimensions": [
        {
            "name": "prompt_tokens",
            "kind": "int",
            "low": 1,
            "high": 512,
            "log": True,
            "boundaries": [15, 16, 17],
        },
        {"name": "concurrency", "kind": "int", "low": 1, "high": 32, "log": True},
        {"name": "overlap", "kind": "float", "low": 0.0, "high": 1.0},
        {"name": "text", "kind": "choice", "choices": ["natural", "random", "repeated"]},
    ],
}
SPACE = read_space(DOCUMENT)
GAIN, NOISE = math.log(1.08), 0.06


def probe_of(effect: Callable[[Cell], float], wrong: Callable[[Cell], int] = lambda _cell: 0) -> Any:
    """A machine with 6 % noise between blocks whose true gain is `effect(cell)`."""

    def probe(cell: Cell, blocks: int, seed: int) -> Outcome:
        rng = np.random.default_rng(seed)
        noise = NOISE * rng.standard_normal(blocks)
        again = tuple(
            (NOISE * rng.standard_normal(blocks)).tolist()
        )  # the same baseline twice, as fresh runs have it
        return Outcome(tuple((effect(cell) + noise).tolist()), wrong(cell), again)

    return probe


def crowded(cell: Cell) -> float:
    return -0.25 if int(cell["concurrency"]) > 12 else GAIN


def exact_block(cell: Cell) -> float:
    return -0.3 if cell["prompt_tokens"] == 16 else GAIN


@pytest.mark.parametrize("effect", [crowded, exact_block])
def test_planted_corner_is_found_within_budget_and_shrunk(effect: Callable[[Cell], float]) -> None:
    """counterexample_noise: a candidate slower only above some concurrency, or only at prompts of one block."""
    for seed in range(8):
        probe = probe_of(effect)
        found = search(SPACE, probe, Budget(), seed)
        assert found.flips, (effect.__name__, seed)
        assert all(effect(one.cell) < 0 for one in found.flips)
        first = found.flips[0]
        small = shrink(SPACE, first.cell, first.outcome, probe, lambda n: 10_000 + n)
        assert effect(small.cell) < 0
        wanted = ("concurrency",) if effect is crowded else ("prompt_tokens",)
        assert small.needed == wanted
        if effect is crowded:
            assert int(small.cell["concurrency"]) <= 15
        assert small.measured <= 40


@pytest.mark.parametrize("truth", [0.0, GAIN])
def test_with_nothing_planted_few_searches_confirm_anything(truth: float) -> None:
    budget = Budget(cells=32)
    confirmed = nominated = 0
    for seed in range(500):
        found = search(SPACE, probe_of(lambda _cell: truth), budget, seed)
        confirmed += bool(found.flips)
        nominated += any(t.outcome.mean < 0 for t in found.tried)
    assert confirmed <= 0.05 * 500
    assert nominated > 0.9 * 500 or truth > 0  # by chance alone nearly every search nominates something


def test_wrong_outputs_need_no_statistics_but_a_fresh_run() -> None:
    def wrong(cell: Cell) -> int:
        return 2 if cell["text"] == "repeated" else 0

    probe = probe_of(lambda _cell: GAIN, wrong)
    found = search(SPACE, probe, Budget(cells=24), 3)
    assert found.flips and all(one.cell["text"] == "repeated" for one in found.flips)
    small = shrink(SPACE, found.flips[0].cell, found.flips[0].outcome, probe, lambda n: n)
    assert small.needed == ("text",)
    seen: list[int] = []

    def once(cell: Cell, blocks: int, seed: int) -> Outcome:
        seen.append(seed)
        return Outcome((GAIN,) * blocks, 1 if len(seen) == 4 else 0)

    single = search(SPACE, once, Budget(cells=24), 3)
    assert single.confirmed and not single.flips
    assert len(set(seen)) == len(seen)  # no run was used twice


def test_a_loss_that_two_equal_arms_may_show_is_none() -> None:
    """The rule of fresh runs: significant is not enough where the machine itself differs by as much."""
    gains = (-0.03, -0.031, -0.029, -0.03, -0.032, -0.03, -0.028, -0.03)
    quiet, loud = (0.001, -0.001) * 4, (0.05, -0.05) * 4
    p = loss_p_value(gains)
    assert p is not None and p < 1e-6
    assert decide({}, Outcome(gains, 0, quiet), p).flip is True
    noisy = decide({}, Outcome(gains, 0, loud), p)
    assert (noisy.flip, "equal arms" in noisy.why) == (False, True)
    assert decide({}, Outcome(gains, 1, loud), p).flip is True


def test_shrinking_does_not_slip_to_a_smaller_loss_of_another_kind() -> None:
    """Every small cell loses 4 %; what is to be explained loses a quarter above 12 slots."""
    probe = probe_of(lambda c: crowded(c) if int(c["concurrency"]) > 12 else -0.04)
    cell: Cell = {"prompt_tokens": 200, "concurrency": 30, "overlap": 0.7, "text": "random"}
    small = shrink(SPACE, cell, probe(cell, 8, 1), probe, lambda n: 10_000 + n, most=80)
    assert small.needed == ("concurrency",)
    assert 13 <= int(small.cell["concurrency"]) <= 16


def test_a_choice_gives_way_to_a_larger_number_where_one_is_needed_anyway() -> None:
    """Repeated texts lose from 4 slots on, others from 20 on: 20 slots are the plainer case, whatever was found."""
    probe = probe_of(
        lambda c: -0.3 if int(c["concurrency"]) >= (4 if c["text"] == "repeated" else 20) else 0.1
    )
    for slots in (5, 9, 30):
        cell: Cell = {"prompt_tokens": 200, "concurrency": slots, "overlap": 0.7, "text": "repeated"}
        small = shrink(SPACE, cell, probe(cell, 8, 1), probe, lambda n: 10_000 + n)
        assert small.needed == ("concurrency",), (slots, small)
        assert 20 <= int(small.cell["concurrency"]) <= 22
        assert small.measured <= 40


def test_a_cell_inside_the_box_is_never_traded_for_one_outside() -> None:
    probe = probe_of(
        lambda c: -0.3 if int(c["concurrency"]) >= (4 if c["text"] == "repeated" else 20) else 0.1
    )
    narrow = [replace(d, high=8.0) if d.name == "concurrency" else d for d in SPACE.dimensions]
    cell: Cell = {"prompt_tokens": 200, "concurrency": 8, "overlap": 0.7, "text": "repeated"}
    small = shrink(SPACE, cell, probe(cell, 8, 1), probe, lambda n: 10_000 + n, box=Space(tuple(narrow)))
    assert small.needed == ("concurrency", "text")
    assert int(small.cell["concurrency"]) == 4


def test_one_flip_explains_another_only_if_its_smallest_cell_fails_with_the_others_values() -> None:
    plain: Cell = {d.name: d.plainest for d in SPACE.dimensions}
    outcome = Outcome((-0.3, -0.31))
    asked: list[Cell] = []

    def fails(cell: Cell) -> bool:
        asked.append(cell)
        return crowded(cell) < 0 or exact_block(cell) < 0

    crowd = Shrunk({**plain, "concurrency": 13}, outcome, 9, ("concurrency",))
    block = Shrunk({**plain, "prompt_tokens": 16}, outcome, 9, ("prompt_tokens",))
    other: Cell = {"prompt_tokens": 40, "concurrency": 30, "overlap": 0.7, "text": "random"}
    assert explains(SPACE, crowd, other, fails)
    assert not explains(SPACE, block, other, fails)
    assert asked == [{**plain, "concurrency": 30}, {**plain, "prompt_tokens": 40}]
    assert not explains(
        SPACE, crowd, {**other, "concurrency": 5}, fails
    )  # not as far: nothing has to be measured
    assert explains(SPACE, block, {**other, "prompt_tokens": 16}, fails)  # the same value: nor here
    assert len(asked) == 2


def test_what_was_not_tried_is_not_said_to_be_needed() -> None:
    probe = probe_of(crowded)
    cell: Cell = {"prompt_tokens": 200, "concurrency": 30, "overlap": 0.7, "text": "random"}
    none = shrink(SPACE, cell, probe(cell, 8, 1), probe, lambda n: n, more=lambda _phase: False)
    assert (none.needed, none.untested, none.measured) == ((), tuple(cell), 0)
    whole = shrink(SPACE, cell, probe(cell, 8, 1), probe, lambda n: 10_000 + n)
    assert (whole.needed, whole.untested) == (("concurrency",), ())


def test_a_confirmation_without_a_value_is_said_to_be_none() -> None:
    found = decide({}, Outcome((), 0, (), "the disk was full"), None)
    assert (found.flip, found.why) == (False, "not measured: the disk was full")


def test_a_search_without_time_says_what_it_left() -> None:
    asked: list[str] = []

    def more(phase: str) -> bool:
        asked.append(phase)
        return len(asked) <= 10

    found = search(SPACE, probe_of(lambda _c: -0.3), Budget(cells=40), 1, more=more).report()
    assert found["cells_tried"] == 10
    assert found["cells_planned"] == 28
    assert found["confirmed"] == [] and found["nominated_not_confirmed"] == found["nominated"] > 0
    assert len([phase for phase, count in found["by_phase"].items() if count]) == 3  # some of each kind


def test_the_report_tells_what_was_and_was_not_tried() -> None:
    told: list[tuple[int, int, str]] = []
    found = search(SPACE, probe_of(lambda _c: GAIN), Budget(cells=40), 1, lambda *step: told.append(step))
    report = found.report()
    assert report["cells_tried"] == 40 == sum(report["by_phase"].values())
    assert all(count > 0 for count in report["by_phase"].values())
    assert report["corners_not_tried"] == 24 - report["by_phase"]["corner"] > 0
    assert report["blocks_run"] == 40 * 3 + 8 * len(found.confirmed)
    assert "not proof" in report["says"]
    assert told[39][:2] == (40, 40)
    again = search(SPACE, probe_of(lambda _c: GAIN), Budget(cells=40), 1).report()
    assert again == report


def test_cells_stay_inside_the_declared_space() -> None:
    found = search(SPACE, probe_of(crowded), Budget(cells=60), 5)
    for tried in found.tried:
        assert 1 <= int(tried.cell["prompt_tokens"]) <= 512
        assert 1 <= int(tried.cell["concurrency"]) <= 32
        assert 0.0 <= float(tried.cell["overlap"]) <= 1.0
        assert tried.cell["text"] in ("natural", "random", "repeated")
    cells = [tuple(t.cell.items()) for t in found.tried]
    assert len(set(cells)) == len(cells)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "magic"}, "kind must be"),
        ({"low": 5, "high": 1}, "low <= high"),
        ({"low": 0, "log": True}, "positive where log"),
        ({"high": math.inf}, "must be numbers"),
        ({"boundaries": ["x"]}, "boundaries"),
        ({"kind": "choice", "choices": []}, "choices"),
        ({"name": "text"}, "named twice"),
    ],
)
def test_a_malformed_space_is_refused(change: dict[str, Any], message: str) -> None:
    first, *rest = DOCUMENT["dimensions"]
    with pytest.raises(InputError, match=message):
        read_space({**DOCUMENT, "dimensions": [{**first, **change}, *rest]})


def test_a_space_of_one_point_is_searched_once() -> None:
    single = Space(
        read_space({**DOCUMENT, "dimensions": [{"name": "n", "kind": "int", "low": 3, "high": 3}]}).dimensions
    )
    found = search(single, probe_of(lambda _c: GAIN), Budget(cells=10), 1)
    assert [t.cell for t in found.tried] == [{"n": 3}]
