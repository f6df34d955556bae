"""A server that is killed while its requests are on their way."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterproof.record import journal
from counterproof.record.store import Store
from counterproof.run.faults import registry, suite
from counterproof.run.faults.bench import Bench
from counterproof.run.faults.fault import RECOVERED

pytestmark = pytest.mark.timeout(200)


def test_a_killed_server_shows_as_failed_requests_or_a_failed_run_and_its_watcher_is_spared(
    store: Path, opened: Store, own_machine: None, fixed_code: None
) -> None:
    instant = ("target=openai", "server=instant", "engine=tiny", "workload.rate_per_s=40.0")
    load = ("workload.requests=40", "workload.max_new_tokens=4")
    bench = Bench(opened.create(), "server_calibration", (*instant, *load), longest_s=0.2)
    (row,) = suite.run_faults(registry.choose(["kill_server"]), bench)
    assert row["outcome"] == RECOVERED, str(row)
    assert row["requests_lost"] > 0
    kinds = [e["kind"] for e in journal.read(bench.store.study("kill_server").journal).events]
    assert kinds[-1] == "run_sealed"
