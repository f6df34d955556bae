"""A real server under load: promoted, rolled back, nothing lost, the old configuration proven back; and a real drill."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterproof.record import canonical
from counterproof.run.deploy import change
from counterproof.run.deploy.change import Promotion
from counterproof.run.deploy.drill import DrillOptions, drill
from counterproof.run.deploy.live_load import Client, LiveLoad, request_bodies, serving, sha256_of, summary
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
    """`counterproof serve` as somebody would start it, until the block ends."""
    command = [sys.executable, "-m", "counterproof", "serve", "--port", "0", "--ready-json", *arguments]
    environment = {**os.environ, "COUNTERPROOF_STORE": str(store)}
    log = (store / "serve.log").open("wb")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], DEADLINE)
        line = process.stdout.readline() if ready else b""
        assert line, (store / "serve.log").read_text()
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


def until(address: Address, wanted: str, store: Path) -> None:
    deadline = time.monotonic() + DEADLINE
    while serving(address) != wanted:
        assert time.monotonic() < deadline, (store / "serve.log").read_text()
        select.select([], [], [], 0.05)


def test_a_rollback_on_a_live_server_loses_no_request_and_brings_the_old_configuration_back(
    promotable: Any,
) -> None:
    root = promotable.store.root
    plan = promotable.plan
    names = {
        arm: fingerprint(
            from_flat(
                {
                    path.removeprefix("engine."): value
                    for path, value in plan["arms"][arm]["config"].items()
                    if path.startswith("engine.")
                }
            )
        )
        for arm in ("baseline", "candidate")
    }
    old, new = names["baseline"], names["candidate"]
    assert old != new
    with served(root, "--scope", "kv_cache", "--baseline", STUDY) as (process, address):
        sent = request_bodies(address, sealed.read(promotable.paths.workload(0)))
        client = Client(address)
        before = [client.ask(index, body) for index, body in enumerate(sent)]
        first = fetch.get_json(address, "/intaglio/effective", {})
        assert first["fingerprint"] == old
        assert first["effective"]["kv_cache.enabled"] is False
        with LiveLoad(address, sent, 3) as load:
            load.wait(lambda seen: len(seen) >= 6, DEADLINE, "begin")
            change.promote(promotable.store, Promotion(STUDY))
            until(address, new, root)
            load.wait(lambda seen: sum(a.config == new for a in seen) >= 9, DEADLINE, "meet the candidate")
            during = fetch.get_json(address, "/intaglio/effective", {})
            change.roll_back(promotable.store, "kv_cache", "acceptance")
            at = time.perf_counter_ns()
            until(address, old, root)
            load.wait(
                lambda seen: sum(a.config == old and a.started_ns > at for a in seen) >= 6,
                DEADLINE,
                "come back",
            )
            answers = load.stop()
        after = [client.ask(index, body) for index, body in enumerate(sent)]
        client.close()
        last = fetch.get_json(address, "/intaglio/effective", {})
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    found = summary(answers)
    assert found["failed"] == 0, found
    assert set(found["by_config"]) == {old, new}
    assert found["by_config"][new] >= 9
    assert all(len(answer.token_ids) == 16 for answer in answers)
    assert during["effective"]["kv_cache.enabled"] is True
    assert during["counters"]["tokens_generated"] >= 9 * 16
    assert (last["fingerprint"], last["effective"]) == (first["fingerprint"], first["effective"])
    assert sha256_of(after) == sha256_of(before)
    log = (root / "serve.log").read_text()
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
