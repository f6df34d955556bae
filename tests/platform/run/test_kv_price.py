"""The price of KV that a plan registers is the engine's own, to the byte, in every format."""

from __future__ import annotations

import pytest

from counterproof.run.targets.intaglio_local import IntaglioLocal
from intaglio.config import KV_FORMATS, from_flat
from intaglio.engine import Engine
from intaglio.intake.request import SamplingParams


@pytest.mark.parametrize("form", KV_FORMATS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_planned_bytes_of_a_token_are_those_that_the_engine_writes(tiny_model, form, dtype):
    config = from_flat(
        {
            "model": str(tiny_model),
            "dtype": dtype,
            "kv_cache.format": form,
            "kv_cache.blocks": 4,
            "threads.count": 1,
        }
    )
    planned = IntaglioLocal().planner(config).kv_bytes_per_token()
    with Engine(config) as engine:
        engine.generate([[5, 6, 7]], SamplingParams(max_tokens=4, ignore_eos=True), on_error="raise")
        assert engine.effective_config()["kv_cache.bytes_per_token"] == planned
        assert engine.counters()["kv_bytes_written"] == 6 * planned
        used = max(gauges["kv_bytes_used"] for _, gauges in engine.drain_gauges())
        assert used == config.kv_cache.block_tokens * planned
