"""The rollback drill: promote on a private server under load, roll back, and show that the baseline is back.

The server follows a ledger of its own, by the same code as a server in service. Beside it stands a control: a server of
the baseline that was never promoted over. After the rollback both answer the same probes in turns.
"""

from __future__ import annotations

import contextlib
import datetime
import time
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
from counterproof.run.deploy.live_load import Answer, Client, LiveLoad, request_bodies, sha256_of, summary
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
    margin      how far the latency of the restored baseline may lie from an untouched one's
    """

    probes: int = 4
    threads: int = 2
    rounds: int = 8
    answers: int = 6
    margin: float = 0.05
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
        timeout = self._options.timeout_s
        with contextlib.ExitStack() as open_until_end:
            server, control = (
                open_until_end.enter_context(PrivateServer(served, self._folder / log, timeout))
                for served, log in ((self._folder / "served.json", "server.log"), (fixed, "control.log"))
            )
            sent = request_bodies(server.address, self._requests)
            before, seen = self._probe(server, sent), server.effective()
            with LiveLoad(server.address, sent, self._options.threads) as load:
                times = self._there_and_back(server, file, load)
                answers = load.stop()
            after, back = self._probe(server, sent), server.effective()
            rounds = self._rounds(server, control, sent)
        return {
            **summary(answers),
            **times,
            **self._of_load(answers, times),
            "configurations": self._names,
            "configuration_equal": seen == back and seen["fingerprint"] == self._names["baseline"],
            "outputs_equal": _good(before) and _good(after) and sha256_of(before) == sha256_of(after),
            "outputs_sha256": {"before": sha256_of(before), "after": sha256_of(after)},
            "output_tokens": sum(len(answer.token_ids) for answer in after),
            "latency": restored.latency_equivalence(*rounds, self._options.margin),
            "latency_ms": {"restored": rounds[0], "control": rounds[1]},
        }

    def _there_and_back(self, server: PrivateServer, file: ServedFile, load: LiveLoad) -> dict[str, Any]:
        """Promote and roll back under load; times from the ledger's entry to the first request that meets it."""
        timeout, need = self._options.timeout_s, self._options.answers
        old, new = self._names["baseline"], self._names["candidate"]
        load.wait(lambda seen: _count(seen, old) >= need, timeout, "get answers of the baseline")
        promoted = time.perf_counter_ns()
        fields = entries.promotion(
            self._plan,
            self._plan_sha256,
            SCOPE,
            {},
            now=_now(),
            decision_sha256=None,
            evidence_expires_utc=None,
        )
        self._ledger.append(PROMOTED, **fields)
        file.look(_now())
        serves = server.await_config(new, timeout)
        load.wait(lambda seen: _count(seen, new) >= need, timeout, "get answers of the candidate")
        rolled = time.perf_counter_ns()
        state = fold(self._ledger.read())[SCOPE]
        self._ledger.append(ROLLED_BACK, **entries.rollback(state, "drill", _now()))
        file.look(_now())
        back = server.await_config(old, timeout)
        load.wait(lambda seen: _count(_since(seen, rolled), old) >= need, timeout, "get answers again")
        return {
            "promote_seconds": (serves - promoted) / 1e9,
            "seconds": (back - rolled) / 1e9,
            "rolled_back_ns": rolled,
        }

    def _of_load(self, answers: Sequence[Answer], times: dict[str, Any]) -> dict[str, Any]:
        rolled = times["rolled_back_ns"]
        by_candidate = [a for a in answers if a.config == self._names["candidate"] and not a.error]
        last = max((a.done_ns for a in by_candidate), default=rolled)
        return {
            "by_candidate": len(by_candidate),
            "by_restored": _count(_since(answers, rolled), self._names["baseline"]),
            "drained_seconds": max(0.0, (last - rolled) / 1e9),
        }

    def _probe(self, server: PrivateServer, sent: Sequence[bytes]) -> list[Answer]:
        client = Client(server.address)
        try:
            return [client.ask(index, body) for index, body in enumerate(sent)]
        finally:
            client.close()

    def _rounds(
        self, server: PrivateServer, control: PrivateServer, sent: Sequence[bytes]
    ) -> tuple[list[list[float]], list[list[float]]]:
        """Latencies in ms of each round: the restored server's and the control's, in turns, first one changing."""
        found: tuple[list[list[float]], list[list[float]]] = ([], [])
        order = [(0, server), (1, control)]
        self._probe(control, sent)  # its first answers are slower than any later one
        for number in range(self._options.rounds):
            for place, one in order if number % 2 == 0 else reversed(order):
                answers = self._probe(one, sent)
                found[place].append([a.latency_ms for a in answers] if _good(answers) else [float("inf")])
        return found


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


def _good(answers: Sequence[Answer]) -> bool:
    return bool(answers) and all(not a.error and a.token_ids for a in answers)


def _count(answers: Sequence[Answer], config: str) -> int:
    return sum(a.config == config and not a.error for a in answers)


def _since(answers: Sequence[Answer], moment_ns: int) -> list[Answer]:
    """Answers whose request began after a moment."""
    return [a for a in answers if a.started_ns > moment_ns]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
