"""Every path of the configuration is either as old as the first packets or says what an engine without it did."""

from __future__ import annotations

from intaglio.config import EngineConfig, flatten, from_flat
from intaglio.config_history import LATER, complete

FIRST = {
    *("model", "dtype", "device", "numerics.mode", "weights.format", "graph.mode", "trace.enabled"),
    *(f"kv_cache.{name}" for name in ("enabled", "block_tokens", "format", "blocks", "memory_mib")),
    *(f"{name}.enabled" for name in ("prefix_cache", "context_cache", "host_tier", "disaggregation")),
    *(f"scheduler.{name}" for name in ("token_budget", "max_running", "prefill_chunk", "max_model_len")),
    *(f"parallel.{name}" for name in ("tensor", "pipeline", "context", "expert", "data")),
    *(f"speculation.{name}" for name in ("method", "length", "draft_model")),
    *("threads.count", "threads.wait_policy", "inject.step_delay_us"),
}


def test_every_path_has_a_history() -> None:
    paths = set(flatten(EngineConfig()))
    assert paths == FIRST | set(LATER), "enter a new path in intaglio.config_history.LATER"
    assert not FIRST & set(LATER)


def test_an_older_record_is_completed_and_a_newer_one_left_alone() -> None:
    full = flatten(EngineConfig())
    old = {path: value for path, value in full.items() if path in FIRST}
    assert set(complete(old)) == set(full)
    assert from_flat(complete(old)) == from_flat({**full, **LATER})
    changed = {**full, "scheduler.max_waiting": 7}
    assert complete(changed) == changed
