"""Arrival processes: their rate, their dispersion, one generator, and what registration refuses."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics

import pytest

from counterproof.errors import InputError
from counterproof.plan.load_checks import load_faults
from counterproof.plan.schema import WorkloadConfig
from counterproof.workload.arrivals import arrivals, scaled

SECOND = 1_000_000_000


def times(
    process: str, count: int = 20_000, rate: float = 50.0, cv: float = 1.0, seed: str = "s"
) -> list[int]:
    found = arrivals(process, count, rate_per_s=rate, cv=cv, seed=seed)
    assert all(time is not None for time in found)
    return [time for time in found if time is not None]


def dispersion(moments: list[int], window_ns: int) -> float:
    """Variance over mean of the counts in equal windows: 1 for a Poisson process."""
    counts = collections.Counter(moment // window_ns for moment in moments)
    values = [counts.get(window, 0) for window in range(moments[-1] // window_ns)]
    return statistics.variance(values) / statistics.mean(values)


def gaps(moments: list[int]) -> list[int]:
    return [later - sooner for sooner, later in itertools.pairwise(moments)]


@pytest.mark.parametrize("process", ["constant", "poisson", "gamma"])
def test_every_process_keeps_its_rate_begins_at_once_and_repeats_by_seed(process: str) -> None:
    found = times(process, cv=2.0)
    assert found[0] == 0
    assert found == sorted(found)
    assert found[-1] / SECOND == pytest.approx(20_000 / 50.0, rel=0.05)
    assert found == times(process, cv=2.0)


def test_poisson_arrivals_have_dispersion_one_and_come_from_one_generator() -> None:
    # Several generators of one seed would send in step: equal gaps, and a dispersion well above 1.
    found = times("poisson")
    assert dispersion(found, SECOND) == pytest.approx(1.0, abs=0.15)
    assert len(set(gaps(found))) > 0.999 * len(gaps(found))
    in_step = sorted(time for time in times("poisson", 5_000, 12.5) for _ in range(4))
    assert dispersion(in_step, SECOND) > 3.0
    assert found != times("poisson", seed="other")


@pytest.mark.parametrize("cv", [0.5, 2.0, 4.0])
def test_bursty_gaps_have_the_asked_coefficient_of_variation(cv: float) -> None:
    found = gaps(times("gamma", cv=cv))
    assert statistics.stdev(found) / statistics.mean(found) == pytest.approx(cv, rel=0.1)


def test_constant_gaps_are_equal_and_a_closed_loop_has_no_times() -> None:
    assert times("constant", 5, 4.0) == [0, SECOND // 4, SECOND // 2, 3 * SECOND // 4, SECOND]
    assert arrivals("closed", 3, rate_per_s=1.0, cv=1.0, seed="") == [None, None, None]
    with pytest.raises(InputError, match="not made from a rate"):
        arrivals("trace", 3, rate_per_s=1.0, cv=1.0, seed="")


def test_trace_times_start_at_zero_stretch_and_never_run_backwards() -> None:
    assert scaled([100, 300, 300, 1100], 0.5) == [0, 100, 100, 500]
    assert scaled([], 1.0) == []
    with pytest.raises(InputError, match="backwards"):
        scaled([5, 4], 1.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"arrival": "uniform"}, "workload.arrival"),
        ({"arrival": "trace"}, "workload.builder=trace"),
        ({"arrival": "poisson", "rate_per_s": 0.0}, "workload.rate_per_s"),
        ({"arrival": "gamma", "arrival_cv": 0.0}, "workload.arrival_cv"),
        ({"language": "fr"}, "workload.language"),
        ({"language": "zh"}, "pydoc_questions is English"),
        ({"builder": "shared_documents", "documents": 0}, "workload.documents"),
        ({"builder": "shared_documents", "document_tokens": 48}, "workload.document_tokens"),
        ({"builder": "multi_turn", "turns": 0}, "workload.turns"),
        ({"builder": "trace"}, "workload.trace is not set"),
        ({"builder": "trace", "trace": "t", "trace_format": "csv"}, "workload.trace_format"),
        ({"builder": "trace", "trace": "t", "length_scale": 0.3}, "workload.length_scale"),
        ({"builder": "trace", "trace": "t", "arrival": "trace", "time_scale": 0.0}, "workload.time_scale"),
    ],
)
def test_a_wrong_field_of_the_workload_is_named(change: dict[str, object], field: str) -> None:
    good = WorkloadConfig(builder="pydoc_questions")
    assert list(load_faults(good)) == []
    faults = list(load_faults(dataclasses.replace(good, **change)))  # type: ignore[arg-type]
    assert any(field in fault for fault in faults), faults
