"""A count of blocks that drifts is a number while the engine is idle, and no crash (field case 6)."""

from __future__ import annotations

from typing import Any

import pytest

from intaglio.intake.request import SamplingParams
from intaglio.state.block_pool import BlockPoolError

SHORT = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.mark.parametrize("prefix", [False, True])
def test_a_leaked_block_is_seen_when_the_engine_falls_idle_and_ends_nothing(make: Any, prefix: bool) -> None:
    """Field case 6."""
    engine = make(prefix_cache__enabled=prefix)
    (before,) = engine.generate([[97] * 9], SHORT)
    assert engine.gauges()["kv_blocks_unaccounted"] == 0
    engine._pools.allocate(2)
    assert engine.gauges()["kv_blocks_unaccounted"] == 2
    engine.drain_gauges()
    engine.add([97] * 9, SHORT, request_id="later")
    engine.step()
    assert engine.gauges()["kv_blocks_unaccounted"] == 0  # not told while a request holds blocks
    while engine.has_work:
        engine.step()
    assert engine.output("later").token_ids == before.token_ids
    (_, idle) = engine.drain_gauges()[-1]
    assert (idle["running"], idle["waiting"], idle["kv_blocks_unaccounted"]) == (0, 0, 2)
    with pytest.raises(BlockPoolError):
        engine.check_integrity()


def test_a_block_freed_too_often_is_seen_as_well(make_contexts: Any) -> None:
    """Field case 6: what a context keeps is named by it, and is no leak; a reference dropped twice is one."""
    engine = make_contexts()
    info = engine.contexts.create([97] * 8)
    assert engine.gauges() | {"kv_bytes_used": 0} == engine.gauges() | {
        "kv_bytes_used": 0,
        "kv_blocks_used": 2,
    }
    assert engine.gauges()["kv_blocks_unaccounted"] == 0
    entry = engine.contexts._cache.find("", info.id)
    engine._pools.release(entry.tables)
    assert engine.gauges()["kv_blocks_unaccounted"] == 2
    engine._pools.allocate(2)
    entry.tables = tuple(tuple(range(2)) for _ in entry.tables) if entry.tables else ()
    engine.contexts.delete(info.id)
    assert engine.gauges()["kv_blocks_unaccounted"] == 0
