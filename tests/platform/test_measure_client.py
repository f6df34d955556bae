"""A client that was the bottleneck, and token counts that disagree, are refuted evidence, never a gain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from counterproof.measure.client import check_client, check_token_counts, engine_holds_the_client

GOOD = {
    "kind": "client",
    "mode": "open",
    "remote": True,
    "requests": 700,
    "late_p50_us": 80.0,
    "late_p90_us": 150.0,
    "late_p99_us": 300.0,
    "lag_p99_us": 200.0,
    "cpu_share": 0.2,
    "stated_tokens": 1000,
    "own_tokens": 995,
    "unstated": 0,
    "prompts_unlike": 0,
}


def study(*, blocks: int = 1, **change: Any) -> Any:
    event = GOOD | change
    latencies = pd.DataFrame({"ttft_ms": [10.0] * 20})
    run = SimpleNamespace(name="00-baseline-1", events=[event], latencies=latencies, remote=event["remote"])
    runs = {(0, "baseline"): run}
    return SimpleNamespace(runs=runs, complete_blocks=list(range(blocks)), arms=["baseline"])


def test_a_client_with_time_to_spare_passes() -> None:
    found = check_client(study())
    assert found.passed is True
    assert found.facts == {"late_ms": 0.3, "cpu_share": 0.2}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"late_p99_us": 1_200.0}, "requests left 1.20 ms late at p99"),
        ({"lag_p99_us": 5_000.0}, "away from its sockets for 5.00 ms"),
        ({"cpu_share": 0.95}, "95 % of a core"),
        ({"requests": 70, "late_p90_us": 1_200.0}, "late at p90"),
    ],
)
def test_a_client_bound_run_says_so(change: dict[str, Any], said: str) -> None:
    found = check_client(study(**change))
    assert found.passed is False
    assert "the client was the bottleneck" in found.detail
    assert said in found.detail


def test_a_percentile_that_the_requests_do_not_resolve_is_not_judged() -> None:
    assert check_client(study(requests=70, late_p99_us=9_000.0)).passed is True


def test_a_closed_loop_beside_the_engine_has_no_client_to_judge() -> None:
    found = check_client(study(mode="closed", remote=False))
    assert (found.passed, found.facts["not_applicable"]) == (None, True)
    assert engine_holds_the_client(study(remote=False)) is True
    assert engine_holds_the_client(study()) is False
    assert check_client(study(blocks=0)).passed is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stated_tokens": 1000, "own_tokens": 800}, "counts 1000 output tokens, the own tokenizer 800"),
        ({"unstated": 3}, "did not count 3 answers"),
        ({"prompts_unlike": 2}, "2 prompts had another length"),
        ({"stated_tokens": 5, "own_tokens": 0}, "counts 5 output tokens"),
    ],
)
def test_counts_that_disagree_are_refuted(change: dict[str, Any], said: str) -> None:
    found = check_token_counts(study(**change))
    assert found.passed is False
    assert said in found.detail


def test_counts_that_agree_pass_and_an_engine_counts_itself() -> None:
    assert check_token_counts(study()).passed is True
    assert check_token_counts(study(remote=False)).facts["not_applicable"] is True
