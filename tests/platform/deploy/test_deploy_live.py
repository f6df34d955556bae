"""A real server under load: promoted, rolled back, nothing lost, the old configuration proven back; and a real drill."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterproof.decide.deploy import restored
from counterproof.decide.deploy.entries import both_configs
from counterproof.record import canonical
from counterproof.run.deploy import change
from counterproof.run.deploy.change import Promotion
from counterproof.run.deploy.drill import DrillOptions, drill
from counterproof.run.deploy.endpoint import Endpoint
from counterproof.run.deploy.exercise import Exercise, ExerciseOptions
from counterproof.run.deploy.live_load import request_bodies
from counterproof.run.targets.http import fetch
from counterproof.run.targets.http.pool import Address
from counterproof.workload import sealed
from intaglio.config import from_flat
from intaglio.config_identity import fingerprint

pytestmark = pytest.mark.timeout(300)

STUDY = "20260102-030405-kv_cache"
DEADLINE = 120.0


@contextlib.contextmanager
def served(store: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Address]]:
    """`counterproof serve --scope NAME ...` as somebody would start it, until the block ends."""
    command = [sys.executable, "-m", "counterproof", "serve", "--port", "0", "--ready-json", *arguments]
    environment = {**os.environ, "COUNTERPROOF_STORE": str(store)}
    place = store / f"serve-{arguments[1]}.log"
    log = place.open("wb")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], DEADLINE)
        line = process.stdout.readline() if ready else b""
        assert line, place.read_text()
        found = json.loads(line)
        yield process, Address("127.0.0.1", found["port"])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        process.kill()
        process.wait()
        log.close()
        if process.stdout is not None:
            process.stdout.close()


def test_a_rollback_on_a_live_server_loses_no_request_and_brings_the_old_configuration_back(
    promotable: Any,
) -> None:
    root, plan = promotable.store.root, promotable.plan
    arms = both_configs(plan)
    names = {arm: fingerprint(from_flat(config)) for arm, config in arms.items()}
    old, new = names["baseline"], names["candidate"]
    assert old != new
    seen: dict[str, Any] = {}
    live, beside = (("--scope", name, "--baseline", STUDY) for name in ("kv_cache", "control"))
    with served(root, *live) as (process, address), served(root, *beside) as (_, untouched):
        sent = request_bodies(address, sealed.read(promotable.paths.workload(0)))

        def roll_back() -> None:
            seen["during"] = fetch.get_json(address, "/intaglio/effective", {})
            change.roll_back(promotable.store, "kv_cache", "acceptance")

        seen["before"] = fetch.get_json(address, "/intaglio/effective", {})
        found = Exercise(
            Endpoint(address),
            Endpoint(untouched),
            sent,
            names,
            lambda: change.promote(promotable.store, Promotion(STUDY)),
            roll_back,
            ExerciseOptions(threads=3, rounds=6, answers=9, margin=10.0, timeout_s=DEADLINE),
        ).run()
        seen["after"] = fetch.get_json(address, "/intaglio/effective", {})
        seen["control"] = fetch.get_json(untouched, "/intaglio/effective", {})
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert restored.verdict(found) == ""
    assert (found["failed"], set(found["by_config"])) == (0, {old, new})
    assert found["by_config"][new] >= 9
    assert found["by_restored"] >= 9
    assert found["output_tokens"] == len(sent) * 16
    assert seen["during"]["effective"]["kv_cache.enabled"] is True
    assert seen["during"]["counters"]["tokens_generated"] >= 9 * 16
    for moment in ("before", "after", "control"):
        assert (seen[moment]["fingerprint"], seen[moment]["effective"]["kv_cache.enabled"]) == (old, False)
    assert seen["after"]["effective"] == seen["before"]["effective"]
    for latency in (found["latency_before"], found["latency"]):
        assert (latency["status"], latency["rounds"]) == (restored.EQUIVALENT, 6)  # within a factor of eleven
        assert latency["low"] <= latency["high"]
    log = (root / "serve-kv_cache.log").read_text()
    assert f"the ledger names {STUDY}/candidate" in log
    assert list((root / "serving").iterdir()) == []


def test_a_drill_promotes_rolls_back_and_is_recorded(shelf: Any) -> None:
    assert shelf.judged()["decision"] == "HOLD"
    options = DrillOptions(probes=3, threads=2, rounds=6, answers=4, margin=10.0, timeout_s=DEADLINE)
    event = drill(shelf.store, STUDY, options)
    assert event["passed"], event["reason"]
    record = canonical.read_json(shelf.store.root / event["record"])
    assert canonical.sha256_file(shelf.store.root / event["record"]) == event["record_sha256"]
    names = record["configurations"]
    assert set(record["by_config"]) == {names["baseline"], names["candidate"]}
    assert record["by_candidate"] >= 4
    assert record["by_restored"] >= 4
    assert record["output_tokens"] == 3 * 16
    assert record["outputs_sha256"]["before"] == record["outputs_sha256"]["after"]
    assert record["latency"]["rounds"] == 6
    assert record["latency"]["status"] in ("equivalent", "not shown")
    assert 0 < event["seconds"] < DEADLINE
    assert event["failed"] == 0
    # It feeds the decision.
    assert shelf.judged()["decision"] == "PROMOTE"
    change.promote(shelf.store, Promotion(STUDY))


def test_serve_of_an_unknown_scope_says_what_to_do(shelf: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from counterproof import cli

    assert cli.main(["serve", "--scope", "nowhere"]) == 2
    assert "--baseline STUDY" in capsys.readouterr().err
    assert cli.main(["serve", "--scope", "No Where"]) == 2
    assert "cannot name a scope" in capsys.readouterr().err
    assert shelf.ledger.read() == ()
