"""The prefix cache by its commands, on the tiny model: what it gains and keeps where prompts share a beginning, and that
a replay of unique prompts shows no gain and cannot be promoted. Judged by work done, not by times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterproof import cli
from counterproof.plan import checks, prereg
from counterproof.record import views
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import verify_study

pytestmark = pytest.mark.timeout(300)
SMALL = (
    "engine=tiny",
    "engine.kv_cache.blocks=256",
    "study.equivalence_requests=2",
    "study.reserve_blocks=0",
    "study.slowed_delay_us=1000",
    "study.probes=false",
)


@pytest.fixture
def run(
    store: Path, own_machine: None, fixed_code: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., StudyPaths]:
    """`run(experiment, ...)` runs one block of it and gives its study."""
    monkeypatch.setattr(views, "refresh", lambda *_: [])

    def make(experiment: str, *overrides: str) -> StudyPaths:
        code = cli.main(
            ["run", experiment, *SMALL, *overrides, "--exploratory", "--blocks", "1", "--study", experiment]
        )
        assert code in (0, 5)  # one block is too few for an interval, which is what invalid says here
        return Store(store).study(experiment)

    return make


def work_of(paths: StudyPaths, arm: str) -> dict[str, int]:
    found = verify_study(paths.folder).run(0, arm)
    assert found is not None
    counters: dict[str, int] = found.manifest["counters"]
    return counters


def comparison_of(paths: StudyPaths) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(paths.comparison.read_text(encoding="utf-8"))
    return content


def kept(comparison: dict[str, Any]) -> dict[str, Any]:
    (cell,) = [c for c in comparison["cost"] if (c["stage"], c["resource"]) == ("state", "memory_kept")]
    return dict(cell)


def test_shared_documents_save_prefill_and_cost_kv_memory(run: Callable[..., StudyPaths]) -> None:
    paths = run("prefix_cache", "workload.requests=11", "workload.max_new_tokens=4")
    base, candidate = work_of(paths, "baseline"), work_of(paths, "candidate")
    # Eleven questions on two documents of 384 tokens: nine of them are found, and nothing else is saved.
    assert candidate["prefix_hit_tokens"] == 9 * 384
    assert base["prefill_tokens"] - candidate["prefill_tokens"] == 9 * 384
    assert base["decode_tokens"] == candidate["decode_tokens"]
    comparison = comparison_of(paths)
    (bar,) = [
        b for b in comparison["stages"]["waterfall"] if (b["stage"], b["phase"]) == ("compute", "prefill")
    ]
    assert bar["delta_ms"] < 0
    cell = kept(comparison)
    assert (cell["status"], cell["baseline"]) == ("measured", 0.0)
    # Both documents are still there when nobody asks any more, in blocks of 16 tokens.
    assert cell["candidate"] >= 2 * 384 * bytes_per_token(paths)
    decision = json.loads(paths.decision.read_text(encoding="utf-8"))
    assert "KV memory kept while no request is there: 0 " in decision["answers"]["cost_went"]["text"]
    assert "KV memory kept while no request is there" in paths.reports[1].read_text(encoding="utf-8")


def test_a_trace_of_unique_prompts_shows_no_gain_and_is_not_promoted(
    run: Callable[..., StudyPaths], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = run("prefix_cache_trace", "workload.time_scale=0.1")
    base, candidate = work_of(paths, "baseline"), work_of(paths, "candidate")
    assert candidate["prefix_lookup_tokens"] > base["prefix_lookup_tokens"] == 0
    assert candidate["prefix_hit_tokens"] == 0
    assert candidate["tokens_computed"] == base["tokens_computed"]
    comparison = comparison_of(paths)
    assert [key for key, entry in comparison["metrics"].items() if entry["verdict"] == "gain"] == []
    assert (kept(comparison)["baseline"], kept(comparison)["candidate"] > 0) == (0.0, True)
    capsys.readouterr()
    assert cli.main(["promote", paths.name]) == 2
    refused = capsys.readouterr().err
    assert "is refused" in refused and "NO_CLAIM" in refused


def test_the_trace_study_can_be_registered_as_it_is() -> None:
    config = prereg.compose_arms("prefix_cache_trace", []).baseline.config
    checks.check(config, exploratory=False)
    assert config.workload.trace == "traces/unique_prompts.csv"


def bytes_per_token(paths: StudyPaths) -> int:
    run = verify_study(paths.folder).run(0, "candidate")
    assert run is not None
    effective = (run.folder / "config" / "effective.yaml").read_text(encoding="utf-8")
    (line,) = [row for row in effective.splitlines() if "bytes_per_token" in row]
    return int(line.split(":")[1])
