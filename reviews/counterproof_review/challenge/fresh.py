"""Confirming a cell: fresh seeds, fresh processes, sealed runs, by the same measuring process as a replay's.

Three arms run in every block: baseline, candidate, and the same baseline once more, so that what two equal arms
differ by in this very cell is known. Outputs that a lossless change altered are looked at again in invariant mode.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterproof.errors import CounterproofError
from counterproof.record import atomic, canonical
from counterproof_review.challenge.bench import Bench
from counterproof_review.challenge.claim import ROLES
from counterproof_review.challenge.compare import gain
from counterproof_review.challenge.engines import Engines
from counterproof_review.challenge.probing import PAIR, WarmProbe
from counterproof_review.challenge.search import Outcome
from counterproof_review.challenge.space import Cell
from counterproof_review.challenge.workload import Builder, Load
from counterproof_review.packet import schedule
from counterproof_review.packet.child import run_executor
from counterproof_review.packet.executor import ESTIMATES, TASK

KEPT = "confirmed"
Told = Callable[[dict[str, Any]], None]


class FreshProbe:
    """A `Probe` whose every run is a process of its own. What it measured stays in `confirmed/` as JSON."""

    def __init__(
        self, bench: Bench, engines: Engines, builder: Builder, warm: WarmProbe, progress: Told
    ) -> None:
        self._bench, self._engines, self._builder = bench, engines, builder
        self._warm, self._progress = warm, progress

    def __call__(self, cell: Cell, blocks: int, seed: int) -> Outcome:
        """Measure `cell` in `blocks` blocks of three runs each."""
        gap = self._warm.gap_ns(cell, seed)
        loads = [self._builder.load(cell, seed, block, gap) for block in range(blocks)]
        exact = {role: self._engines.exact(role) for role in PAIR}
        # The machine belongs to the fresh runs.
        self._engines.close()
        found, error = self._measure(loads, seed, ROLES, {})
        outcome = self._outcome(found, loads, error)
        changed = _changed(found, self._bench.claim.arms, blocks)
        if changed and self._bench.claim.lossless:
            if set(exact.values()) != {None}:
                again, _ = self._measure([loads[b] for b in changed], seed + 1, PAIR, exact)
                changed = _changed(again, self._bench.claim.arms, len(changed))
            wrong = sum(changed.values())
            outcome = Outcome(outcome.gains, outcome.wrong + wrong, outcome.again, outcome.note)
        return outcome

    def _measure(
        self, loads: Sequence[Load], seed: int, roles: Sequence[str], modes: Mapping[str, str | None]
    ) -> tuple[dict[str, Any], CounterproofError | None]:
        """Run the executor of a replay; its estimates, and the error that ended it early."""
        place = self._bench.work / f"fresh-{seed}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        configs = {self._bench.claim.arms[r]: self._bench.config(r, modes.get(r)) for r in roles}
        atomic.write_json(place / TASK, self._task(loads, seed, configs, place))
        try:
            error = run_executor(self._bench.around, place, self._progress)
            found = canonical.read_json(place / ESTIMATES)
            kept = self._bench.folder / KEPT / f"{seed}.json"
            kept.parent.mkdir(exist_ok=True)
            atomic.write_json(kept, found)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return found, error

    def _task(
        self, loads: Sequence[Load], seed: int, configs: Mapping[str, Any], place: Path
    ) -> dict[str, Any]:
        bench = self._bench
        nonce = seed.to_bytes(32, "big")
        return {
            "packet_id": bench.report.packet["packet_id"],
            "claim_id": bench.report.packet["claim_id"],
            "target": bench.lock["target"],
            "concurrency": loads[0].concurrency,
            "request_timeout_s": bench.timeout_s,
            "run_deadline_s": float(bench.lock["run_deadline_s"]),
            "metric": bench.claim.metric,
            "statistic": bench.claim.statistic,
            "arms": dict(configs),
            "environment": bench.identity,
            "runs": schedule.runs(bench.report.root, nonce, len(loads), configs),
            "workloads": [bench.write(load.requests, place / "workloads") for load in loads],
            "warmup": bench.write(loads[0].warmup, place / "workloads"),
        }

    def _outcome(
        self, found: Mapping[str, Any], loads: Sequence[Load], error: CounterproofError | None
    ) -> Outcome:
        claim = self._bench.claim
        runs = {(run["block"], run["arm"]): run for run in found["runs"]}
        sides = {role: [runs.get((b, claim.arms[role])) for b in range(len(loads))] for role in ROLES}
        gains, again, wrong = [], [], 0
        for base, other, same in zip(sides["baseline"], sides["candidate"], sides["again"], strict=True):
            if base is None or other is None:
                continue
            wrong += max(0, other["failed_requests"] - base["failed_requests"])
            gains.append(gain(other["value"], base["value"], claim.sign))
            again.append(gain(same["value"] if same else None, base["value"], 1.0))
        note = ""
        if error is not None:
            note = str(error)
            last: dict[str, Any] = found["failed"][-1] if found["failed"] else {"arm": "", "block": 0}
            if last["arm"] == claim.arms["candidate"]:
                wrong += len(loads[last["block"]].requests)
                note = f"the candidate failed in every attempt: {last['reason']}"
        complete = all(value is not None for value in (*gains, *again))
        if not complete:
            return Outcome((), wrong, (), note or "a run has no value of the metric")
        return Outcome(
            tuple(v for v in gains if v is not None), wrong, tuple(v for v in again if v is not None), note
        )


def _changed(found: Mapping[str, Any], arms: Mapping[str, str], blocks: int) -> dict[int, int]:
    """Blocks in which outputs differ between the two arms, and in how many requests. Failed requests stand elsewhere."""
    runs = {(run["block"], run["arm"]): run for run in found["runs"]}
    changed = {}
    for block in range(blocks):
        base, other = (runs.get((block, arms[role])) for role in PAIR)
        if base is None or other is None or base["failed_requests"] or other["failed_requests"]:
            continue
        pairs = zip(base["outputs_sha256"], other["outputs_sha256"], strict=True)
        count = sum(one != two for one, two in pairs)
        if count:
            changed[block] = count
    return changed
