"""What registration refuses, and the schedule it fixes."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any

import pytest

from counterproof.errors import InputError, RefusedError
from counterproof.plan import checks
from counterproof.plan.compose import compose
from counterproof.plan.schedule import schedule
from counterproof.plan.schema import ExperimentConfig, GuardrailConfig

ARMS = ("baseline", "candidate", "again", "slowed")


@functools.cache
def composed() -> ExperimentConfig:
    return compose("kv_cache", []).config


def config(**changes: Any) -> ExperimentConfig:
    """The project's experiment with single fields changed, e.g. study__blocks=3."""
    base = composed()
    for name, value in changes.items():
        node, _, leaf = name.partition("__")
        part = dataclasses.replace(getattr(base, node), **{leaf: value}) if leaf else value
        base = dataclasses.replace(base, **{node: part})
    return base


def test_the_projects_experiment_is_registrable() -> None:
    checks.check(config(), exploratory=False)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"study__blocks": 5}, "needs at least 6"),
        ({"study__blocks": 0}, "between 1 and 99"),
        ({"study__aa_band": 0.0}, "aa_band"),
        ({"study__slowed_delay_us": 0}, "slowed_delay_us"),
        ({"study__attempts": 0}, "attempts"),
        ({"study__run_deadline_s": 0.0}, "run_deadline_s"),
        ({"workload__requests": 0}, "workload.requests"),
        ({"workload__concurrency": 0}, "workload.concurrency"),
        ({"workload__max_new_tokens": 0}, "workload.max_new_tokens"),
        ({"workload__top_p": 0.0}, "top_p"),
        ({"workload__temperature": -1.0}, "temperature"),
        ({"workload__requests": 10}, "p50 of tpot_ms needs 11 requests a run"),
        ({"primary__statistic": "p90"}, "p90 of tpot_ms needs 64 requests a run"),
        ({"primary__sesoi": 0.0}, "sesoi"),
        ({"primary__better": "equal"}, "primary.better"),
        (
            {"guardrails": [GuardrailConfig("ttft_ms", "p99", "sampled", 0.1)]},
            "p99 of ttft_ms needs 662 requests a run",
        ),
        ({"guardrails": [GuardrailConfig("ttft_ms", "mean", "hunch", 0.1)]}, "kind must be one of"),
        ({"guardrails": [GuardrailConfig("ttft_ms", "mean", "rate", -0.1)]}, "negative"),
        (
            {
                "guardrails": [
                    GuardrailConfig("kv_bytes_peak", "peak", "exact", 0.1, predict="guess", reason="x")
                ]
            },
            "no arithmetic called 'guess'",
        ),
        (
            {"guardrails": [GuardrailConfig("kv_bytes_peak", "peak", "exact", 0.1, predict="kv_bytes")]},
            "needs a reason",
        ),
        ({"guardrails": [GuardrailConfig("ttft_ms", "mean", "rate", 0.1)] * 2}, "given twice"),
    ],
)
def test_faults_are_refused_at_registration(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError) as caught:
        checks.check(config(**changes), exploratory=False)
    assert fault in " ".join([str(caught.value), *caught.value.details])


def test_fewer_blocks_are_possible_only_for_exploration() -> None:
    checks.check(config(study__blocks=1), exploratory=True)


def test_uncommitted_changes_are_refused_with_the_files() -> None:
    checks.refuse_dirty(())
    with pytest.raises(RefusedError) as caught:
        checks.refuse_dirty(tuple(f" M file{i}" for i in range(30)))
    assert caught.value.details[:2] == [" M file0", " M file1"]
    assert "... and 10 more" in caught.value.details
    assert "--exploratory" in caught.value.details[-1]


def test_schedules_are_permutations_fixed_by_the_seed_with_the_first_baseline_first() -> None:
    for seed in range(200):
        plan = schedule(ARMS, 8, seed)
        assert all(sorted(order) == sorted(ARMS) for order in plan)
        assert plan[0].index("baseline") < plan[0].index("candidate")
        assert plan == schedule(ARMS, 8, seed)
    assert schedule(ARMS, 8, 1) != schedule(ARMS, 8, 2)


def test_every_order_is_about_equally_likely() -> None:
    orders = collections.Counter(
        tuple(order) for seed in range(200) for order in schedule(ARMS, 13, seed)[1:]
    )
    assert len(orders) == 24
    # 2,400 draws over 24 orders: 100 each, standard deviation 9.8.
    assert all(55 < count < 145 for count in orders.values())
