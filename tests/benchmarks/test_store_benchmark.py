"""The benchmark of a store's scale, on a small one: it does the work whose time it tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import store_scale


@pytest.mark.timeout(200)
def test_sixty_studies_and_a_long_one(tmp_path: Path) -> None:
    found = store_scale.measure(tmp_path, 60, 1, 48_000, 0)
    assert (found["studies"], found["runs"]) == (60, 360)
    assert found["long_tokens"] >= 48_000
    for name in ("list_copied_s", "list_first_s", "list_again_s", "rebuild_s", "tokens_s"):
        # Far above what so few studies take even on a busy machine; the figures for many are the benchmark's own.
        assert 0 < found[name] < 30
    assert 20 < found["tokens_peak_mib"] < 2048
    with pytest.raises(RuntimeError, match="not every study"):
        store_scale.check(False, "not every study was indexed")
