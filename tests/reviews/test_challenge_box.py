"""A search and the box of the claim: only what fails in it can cut it, however small it is and whatever the seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from counterproof_review.challenge import declared
from counterproof_review.challenge.reach import Reach
from counterproof_review.challenge.search import Budget, Outcome, Search, search
from counterproof_review.challenge.shrink import Shrunk, shrink
from counterproof_review.challenge.space import Cell, Space

SEEDS = 200
REACH = Reach(longest=512, least_outputs=2, pool=4096)
POINT = {"prompt_tokens": [16, 16], "output_tokens": [6, 6], "concurrency": 4}  # one length of each
WIDE = {"prompt_tokens": [10, 48], "output_tokens": [4, 24], "concurrency": 4}
SMALL = Budget(cells=26, probe_blocks=1, confirm_blocks=3, confirm=1)
NOISE = 0.08
SLOTS = 3

Effect = Callable[[Cell], float]


class Machine:
    """A machine with noise between blocks, on which the candidate gains `effect(cell)`; counts what it measured."""

    def __init__(self, effect: Effect, noise: float = NOISE) -> None:
        self.effect, self.noise = effect, noise
        self.seeds: list[int] = []

    def __call__(self, cell: Cell, blocks: int, seed: int) -> Outcome:
        self.seeds.append(seed)
        rng = np.random.default_rng(seed)
        gains, again = self.noise * rng.standard_normal((2, blocks))
        return Outcome(tuple((self.effect(cell) + gains).tolist()), 0, tuple(again.tolist()))


def crowded(cell: Cell) -> float:
    """Slow with three requests in a step; nothing else changes anything."""
    return -1.6 if int(cell["concurrency"]) >= SLOTS else 0.0


def piling(cell: Cell) -> float:
    """The same, and two at a time pile up where they come in bursts."""
    return -1.4 if cell["burstiness"] == "burst" and int(cell["concurrency"]) == 2 else crowded(cell)


def worse_outside(cell: Cell) -> float:
    """What the claim is not about loses far more than what it is about."""
    return -3.0 if int(cell["prompt_tokens"]) < 8 else crowded(cell)


def only_outside(cell: Cell) -> float:
    """A true gain everywhere but for crowds that the claim excludes."""
    return -1.6 if int(cell["concurrency"]) > 4 else 0.3


def searched(
    effect: Effect, scope: dict[str, object], seed: int, budget: Budget = SMALL
) -> tuple[Search, Space, Machine]:
    machine = Machine(effect)
    space = declared.space_of(scope, None, REACH)
    return search(space, machine, budget, seed, box=declared.box_of(scope, space)), space, machine


def shrunk(found: Search, space: Space, machine: Machine) -> Shrunk:
    one = found.flips[0]
    return shrink(
        space, one.cell, one.outcome, machine, lambda n: found.seed + 7 * n, blocks=3, box=found.box
    )


@pytest.mark.parametrize("scope", [POINT, WIDE], ids=["point", "wide"])
@pytest.mark.parametrize("effect", [crowded, piling, worse_outside])
def test_one_confirmation_is_enough_whatever_the_seed(effect: Effect, scope: dict[str, object]) -> None:
    for seed in range(SEEDS):
        found, space, machine = searched(effect, scope, seed)
        (one,) = found.confirmed
        assert one.flip and declared.inside(scope, one.cell), (seed, one)
        assert found.report()["nominated_inside"] > 0
        small = shrunk(found, space, machine)
        assert declared.inside(scope, small.cell), seed
        assert small.needed == ("concurrency",), (seed, small)
        assert small.cell["concurrency"] == SLOTS
        assert declared.cut(scope, [small.cell], small.needed) == {**scope, "concurrency": SLOTS - 1}
        assert len(set(machine.seeds)) == len(machine.seeds)


@pytest.mark.parametrize("scope", [POINT, WIDE], ids=["point", "wide"])
def test_what_fails_outside_alone_is_confirmed_with_what_is_left_and_cuts_nothing(
    scope: dict[str, object],
) -> None:
    budget = replace(SMALL, confirm=6)
    for seed in range(SEEDS):
        found, _, _ = searched(only_outside, scope, seed, budget)
        assert found.flips, seed
        assert not any(declared.inside(scope, one.cell) for one in found.flips)
        report = found.report()
        assert report["nominated_inside"] == report["nominated_inside_not_confirmed"] == 0
        assert report["nominated_not_confirmed"] == report["nominated"] - len(report["confirmed"])


def test_cells_inside_are_confirmed_first_and_the_rest_of_the_budget_goes_to_the_worst_outside() -> None:
    for seed in range(SEEDS):
        found, _, _ = searched(crowded, POINT, seed, replace(SMALL, confirm=26))
        inside = [declared.inside(POINT, one.cell) for one in found.confirmed]
        assert inside == sorted(inside, reverse=True), seed
        assert 0 < sum(inside) < len(inside)
        assert len(inside) == found.nominated and sum(inside) == found.nominated_inside


@pytest.mark.parametrize("scope", [POINT, WIDE], ids=["point", "wide"])
def test_a_quarter_of_the_cells_at_least_lies_in_the_box_and_a_quarter_around_it(
    scope: dict[str, object],
) -> None:
    for seed in range(SEEDS):
        found, space, _ = searched(crowded, scope, seed)
        inside = [declared.inside(scope, t.cell) for t in found.tried]
        assert len({tuple(t.cell.items()) for t in found.tried}) == len(inside) == SMALL.cells
        assert sum(inside) == found.report()["cells_inside"]
        assert min(sum(inside), len(inside) - sum(inside)) >= len(inside) // 4, (seed, sum(inside))
        assert all(space.holds(t.cell) for t in found.tried)


def test_the_box_is_the_part_of_the_claim_that_can_be_tried_here() -> None:
    space = declared.space_of(WIDE, None, REACH)
    box = declared.box_of(WIDE, space)
    assert box is not None
    cell: Cell = {d.name: d.at(1.0) for d in space.dimensions}
    near = box.nearest(cell)
    assert not box.holds(cell) and box.holds(near) and declared.inside(WIDE, near)
    assert {name for name in cell if cell[name] != near[name]} == {
        "prompt_tokens",
        "output_tokens",
        "concurrency",
    }
    assert box.nearest(near) == near
    far = {**WIDE, "output_tokens": [400, 900]}
    assert declared.box_of(far, declared.space_of(far, None, REACH)) is None
