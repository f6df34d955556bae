"""Promote and roll back on a live server under load: no request fails, and the old configuration is proven back.

    python benchmarks/live_rollback.py                       the tiny model, kv_cache off -> on -> off, about two minutes
    python benchmarks/live_rollback.py --engine smollm2_bf16 --rounds 12
    python benchmarks/live_rollback.py --study kv_cache-20260102-030405      a study of the store that may be promoted

Two servers are started as anybody would start them (`counterproof serve`): one that serves the scope, and a control that
serves the baseline and is never touched. With --study the promotion goes through the gate. Without, the study is only
registered, so that nothing could let it through: the promotion is entered into a ledger of its own, as a drill does.

The outcome goes to benchmarks/results/live_rollback.json: requests, failures, times, and latency before and after against
the control with the 90 % interval of each. Exit code 1 unless no request failed, configuration and outputs are those
of before, and the latency is equivalent within the band that the study registered for two runs of the same baseline.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from counterproof.decide.deploy import entries, restored
from counterproof.record import code_identity
from counterproof.record.deployment_ledger import PROMOTED, DeploymentLedger
from counterproof.record.machine import identity
from counterproof.record.store import Store, StudyPaths, open_store
from counterproof.record.verify import verify_plan, workload_sha256
from counterproof.run.deploy import change
from counterproof.run.deploy.change import Promotion
from counterproof.run.deploy.endpoint import Endpoint
from counterproof.run.deploy.exercise import Exercise, ExerciseOptions
from counterproof.run.deploy.live_load import request_bodies
from counterproof.run.register import StudyRequest, register
from counterproof.run.targets.http.pool import Address
from counterproof.run.targets.http.server_process import ServerProcess
from counterproof.workload import sealed
from intaglio.config import from_flat
from intaglio.config_identity import fingerprint

RESULT = Path(__file__).resolve().parent / "results" / "live_rollback.json"
SCOPE, CONTROL = "live", "control"
READY_S, STOP_S = 300.0, 60.0
# One thread: two wake each other within steps of 2 ms, and where the system puts them decides between 24 and 37 ms.
LOAD = (
    "engine.threads.count=1",
    "workload.max_new_tokens=12",
    "study.probes=false",
    "study.reserve_blocks=0",
)


def main() -> int:
    """Exercise, write what was seen. Returns the exit status."""
    args = _arguments()
    began = time.monotonic()
    with contextlib.ExitStack() as until_end:
        if args.study:
            store, name = open_store(), args.study
        else:
            store = Store(Path(until_end.enter_context(tempfile.TemporaryDirectory(prefix="live-")))).create()
            name = _register(store, args.engine)
        paths = store.study(name)
        plan = verify_plan(paths)[0]
        margin = float(plan["aa_band"]) if args.margin is None else args.margin
        options = ExerciseOptions(args.threads, args.rounds, args.answers, margin, READY_S)
        found = exercise(store, paths, plan, options, gate=bool(args.study), probes=args.probes)
    result = {**_about(plan, gate=bool(args.study)), **_shown(found), "took_s": time.monotonic() - began}
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    return 0 if result["passed"] else 1


def exercise(
    store: Store,
    paths: StudyPaths,
    plan: dict[str, Any],
    options: ExerciseOptions,
    *,
    gate: bool,
    probes: int,
) -> dict[str, Any]:
    """Start both servers and go there and back; what `Exercise.run` saw."""
    names = {arm: fingerprint(from_flat(config)) for arm, config in entries.both_configs(plan).items()}
    requests = sealed.read(paths.workload(0), workload_sha256(plan, 0))[:probes]

    def promote() -> None:
        _say("promoting")
        if gate:
            change.promote(store, Promotion(paths.name, SCOPE))
        else:
            _enter(store, paths)

    def roll_back() -> None:
        _say("rolling back")
        change.roll_back(store, SCOPE, "live rollback")

    with _serving(store, SCOPE, paths.name) as server, _serving(store, CONTROL, paths.name) as control:
        _say(f"two servers are up; {options.rounds} rounds of probes before, then the load")
        sent = request_bodies(server.address, requests)
        return Exercise(server, control, sent, names, promote, roll_back, options).run()


def _enter(store: Store, paths: StudyPaths) -> None:
    plan, digest, _ = verify_plan(paths)
    ledger, now = DeploymentLedger(store.root), datetime.datetime.now(datetime.UTC)
    with ledger.changing():
        fields = entries.promotion(
            plan, digest, SCOPE, {}, now=now, decision_sha256=None, evidence_expires_utc=None
        )
        ledger.append(PROMOTED, **fields)


def _register(store: Store, engine: str) -> str:
    overrides = (f"engine={engine}", *LOAD)
    return register(store, StudyRequest("kv_cache", overrides, (), "live", exploratory=True)).name


@contextlib.contextmanager
def _serving(store: Store, scope: str, study: str) -> Iterator[Endpoint]:
    """`counterproof serve` of a scope that begins with the study's baseline, until the block ends."""
    command = [sys.executable, "-m", "counterproof", "serve", "--scope", scope, "--baseline", study]
    environment = {**os.environ, "COUNTERPROOF_STORE": str(store.root)}
    log = Path(tempfile.gettempdir()) / f"live-rollback-{scope}-{os.getpid()}.log"
    process = ServerProcess([*command, "--port", "0", "--ready-json"], environment, log)
    try:
        deadline = time.monotonic() + READY_S
        address = Address("127.0.0.1", process.announced_port(deadline))
        process.await_health(address, "/health", {}, deadline)
        yield Endpoint(address, process.tail)
    finally:
        process.stop(STOP_S)
        log.unlink(missing_ok=True)


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """The counts and intervals; single latencies become medians of their rounds."""
    reason = restored.verdict(found)
    equivalent = found["latency"]["status"] == restored.EQUIVALENT
    names = {
        "before": ("latency_before_ms", "server"),
        "before, control": ("latency_before_ms", "control"),
        "after": ("latency_ms", "restored"),
        "after, control": ("latency_ms", "control"),
    }
    medians = {
        label: statistics.median(value for one in found[key][place] for value in one)
        for label, (key, place) in names.items()
    }
    left = ("latency_ms", "latency_before_ms", "rolled_back_ns")
    return {
        "passed": not reason and equivalent,
        "reason": reason or ("" if equivalent else found["latency"]["text"]),
        **{key: value for key, value in found.items() if key not in left},
        "median_latency_ms": medians,
    }


def _about(plan: dict[str, Any], *, gate: bool) -> dict[str, Any]:
    configs, machine = entries.both_configs(plan), identity()
    model = Path(configs["baseline"]["model"])
    changed = sorted(
        path for path, value in configs["candidate"].items() if configs["baseline"][path] != value
    )
    return {
        "experiment": plan["experiment"],
        "model": model.name if model.is_absolute() else str(model),
        "changed": {path: [configs["baseline"][path], configs["candidate"][path]] for path in changed},
        "promoted_through_gate": gate,
        "commit": code_identity.identify().as_dict().get("sha"),
        "measured_utc": entries.stamp(datetime.datetime.now(datetime.UTC)),
        "machine": {
            name: machine[name] for name in ("cpu.model", "cpu.logical", "os.kernel", "python.version")
        },
    }


def _say(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", help="a study of $COUNTERPROOF_STORE that may be promoted")
    parser.add_argument("--engine", default="tiny", help="without --study: an engine of experiments/engine")
    parser.add_argument("--rounds", type=int, default=32, help="of probes, before and after; at least 6")
    parser.add_argument("--threads", type=int, default=2, help="requests in flight at a time")
    parser.add_argument("--probes", type=int, default=11, help="different requests")
    parser.add_argument("--answers", type=int, default=20, help="answers of the load from each configuration")
    parser.add_argument("--margin", type=float, help="equivalence band (default: the study's aa_band)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
