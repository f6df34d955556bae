"""The rollback drill: promote on a private server under load, roll back, and show that the baseline is back.

The server follows a ledger of its own, by the same code as a server in service. Beside it stands a control: a server of
the baseline that was never promoted over. After the rollback both answer the same probes in turns.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.decide.deploy import entries, restored
from counterproof.errors import InputError
from counterproof.record import atomic, canonical, code_identity
from counterproof.record.deployment_ledger import (
    DRILLED,
    PROMOTED,
    ROLLED_BACK,
    DeploymentLedger,
    bear_witness,
)
from counterproof.record.deployment_state import Served, fold
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import verify_study, workload_sha256
from counterproof.run.deploy.exercise import Exercise, ExerciseOptions
from counterproof.run.deploy.live_load import request_bodies
from counterproof.run.deploy.private_server import PrivateServer
from counterproof.run.deploy.served_file import ServedFile
from counterproof.workload import sealed
from intaglio.config import from_flat
from intaglio.config_identity import fingerprint

RECORD = "drill.json"
SCHEMA = "counterproof-drill/1"
SCOPE = "drill"


@dataclass(frozen=True)
class DrillOptions:
    """probes   requests of the study's first block that are sent again and again
    threads     requests in flight at a time
    rounds      of probes for the latency after the rollback; at least 6 for an interval
    answers     how many answers the load must get from each configuration
    margin      how far the latency of the restored baseline may lie from an untouched one's; None: as far as two
                runs of the same baseline may lie apart by the study's plan (aa_band)
    """

    probes: int = 4
    threads: int = 2
    rounds: int = 8
    answers: int = 6
    margin: float | None = None
    timeout_s: float = 600.0


def drill(store: Store, name: str, options: DrillOptions | None = None) -> dict[str, Any]:
    """Drill the study's promotion and rollback; returns the ledger's `drilled` entry, passed or not.

    Raises EvidenceError, InputError, ExecutionError when the servers do not even come up; then nothing is recorded.
    """
    chosen = options or DrillOptions()
    paths = store.study(name)
    study = verify_study(paths.folder)
    plan = study.plan
    requests = _requests(paths, plan, chosen.probes)
    code = code_identity.identify().as_dict()
    folder = _new_folder(store, name)
    facts = _Drill(plan, study.plan_sha256, requests, folder, chosen).run()
    reason = restored.verdict(facts)
    record = {
        "schema": SCHEMA,
        "study": name,
        "passed": reason == "",
        "reason": reason,
        "code": code,
        **facts,
    }
    digest = atomic.write_json(folder / RECORD, record)
    ledger = DeploymentLedger(store.root)
    with ledger.changing():
        event = ledger.append(
            DRILLED,
            study=name,
            plan_sha256=study.plan_sha256,
            code=code,
            passed=record["passed"],
            reason=reason,
            seconds=facts["seconds"],
            drained_seconds=facts["drained_seconds"],
            requests=facts["requests"],
            failed=facts["failed"],
            latency=facts["latency"]["text"],
            record=f"drills/{folder.name}/{RECORD}",
            record_sha256=digest,
        )
        bear_witness(paths, event)
    return event


class _Drill:
    """One drill in one folder."""

    def __init__(
        self,
        plan: dict[str, Any],
        plan_sha256: str,
        requests: Sequence[sealed.SealedRequest],
        folder: Path,
        options: DrillOptions,
    ) -> None:
        self._plan, self._plan_sha256 = plan, plan_sha256
        self._requests = requests
        self._folder = folder
        self._options = options
        self._ledger = DeploymentLedger(folder)
        configs = entries.both_configs(plan)
        self._names = {arm: fingerprint(from_flat(config)) for arm, config in configs.items()}
        self._baseline = configs["baseline"]

    def run(self) -> dict[str, Any]:
        """Everything that was seen, as drill.json holds it."""
        digest = canonical.sha256_json(self._baseline)
        start = Served(
            SCOPE, -1, self._plan["study"], "baseline", self._baseline, digest, {}, entries.stamp(_now())
        )
        file = ServedFile(self._ledger, SCOPE, self._folder / "served.json", baseline=start)
        file.look(_now())
        fixed = self._folder / "control.json"
        atomic.write_json(fixed, self._baseline)
        chosen, timeout = self._options, self._options.timeout_s
        with contextlib.ExitStack() as open_until_end:
            server, control = (
                open_until_end.enter_context(PrivateServer(served, self._folder / log, timeout)).endpoint
                for served, log in ((self._folder / "served.json", "server.log"), (fixed, "control.log"))
            )
            sent = request_bodies(server.address, self._requests)

            def promote() -> None:
                self._ledger.append(PROMOTED, **self._promotion())
                file.look(_now())

            def roll_back() -> None:
                state = fold(self._ledger.read())[SCOPE]
                self._ledger.append(ROLLED_BACK, **entries.rollback(state, "drill", _now()))
                file.look(_now())

            how = ExerciseOptions(chosen.threads, chosen.rounds, chosen.answers, self._margin(), timeout)
            return Exercise(server, control, sent, self._names, promote, roll_back, how).run()

    def _margin(self) -> float:
        """The band that the study registered for two runs of the same baseline."""
        return (
            float(self._plan.get("aa_band", 0.05)) if self._options.margin is None else self._options.margin
        )

    def _promotion(self) -> dict[str, Any]:
        return entries.promotion(
            self._plan,
            self._plan_sha256,
            SCOPE,
            {},
            now=_now(),
            decision_sha256=None,
            evidence_expires_utc=None,
        )


def _requests(paths: StudyPaths, plan: dict[str, Any], count: int) -> list[sealed.SealedRequest]:
    path = paths.workload(0)
    if not path.is_file():
        raise InputError(f"{paths.name} has no sealed workload to send")
    return sealed.read(path, workload_sha256(plan, 0))[:count]


def _new_folder(store: Store, name: str) -> Path:
    base = store.root / "drills"
    base.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = base / f"{name}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
            continue
        return folder


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
