"""The measuring side of a replay: a process that knows arms by opaque names only and has no network.

`python -m counterproof_review.packet.executor FOLDER PARENT_PID` reads `task.json` there, runs every place of its schedule
in a fresh process by the harness's own executor, seals each record, and writes `estimates.json`. The author's
results are not in the folder, so nothing here can see them.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from counterproof.errors import CounterproofError, ExecutionError, SetupError
from counterproof.measure import bottleneck
from counterproof.measure.load import RunData
from counterproof.measure.metrics import run_value
from counterproof.measure.slowed import step_times
from counterproof.record import atomic, canonical, manifest
from counterproof.record.store import RunKey
from counterproof.record.verify import SealedRun
from counterproof.run import assemble, orphan
from counterproof.run.executor import execute
from counterproof.run.machine_lock import machine_lock
from counterproof.run.spec import RunSpec
from counterproof.run.targets.registry import HTTP
from counterproof.workload import sealed as sealed_requests
from counterproof_review.packet import guard, loopback, outputs, surroundings
from intaglio.config import from_flat

TASK = "task.json"
ESTIMATES = "estimates.json"
ATTEMPTS = 3


@dataclass(frozen=True)
class _Sealed:
    """A sealed run, and what of it leaves the folder."""

    data: RunData
    summary: dict[str, Any]


@dataclass
class _Found:
    """What was measured so far. `rounding`: by opaque arm, see packet/outputs.py."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    rounding: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: list[RunData] = field(default_factory=list)

    def part(self) -> None:
        """Note with each run where its outputs part from those of its block's other arms."""
        if all("against" in run for run in self.runs):
            return
        seen = outputs.against_others(self.data)
        for run in self.runs:
            run["against"] = seen[run["block"], run["arm"]]

    def estimates(self) -> dict[str, Any]:
        """estimates.json."""
        return {"runs": self.runs, "failed": self.failed, "rounding": self.rounding}


def main() -> int:
    """Run the task; the exit code is that of counterproof.errors. Progress goes to standard output as JSON lines."""
    folder = Path(sys.argv[1])
    orphan.die_with_parent(int(sys.argv[2]))
    if not guard.installed():
        return _fail(ExecutionError("the network guard is not in place, so nothing was run"))
    task = canonical.read_json(folder / TASK)
    # A server that a run starts is reached over the loopback; everything beyond it stays off.
    if not loopback.bring_up() and task["target"] == HTTP:
        return _fail(
            SetupError(
                "this packet is of a server's study, and no loopback can be had where the network is off",
                details=["replay it as a user who may configure a network namespace of their own"],
            )
        )
    found = _Found()
    try:
        error = _measure(folder, task, found)
        if task.get("hold_together"):
            _measure_rounding(folder, task, found)
    finally:
        found.part()
        atomic.write_json(folder / ESTIMATES, found.estimates())
    if error is not None:
        return _fail(error)
    _tell("done")
    return 0


def _measure(folder: Path, task: dict[str, Any], found: _Found) -> CounterproofError | None:
    """Every place of the schedule; returns the error that ended it early."""
    try:
        for number, (block, arm) in enumerate(task["runs"], start=1):
            _tell("run", number=number, of=len(task["runs"]), block=block, arm=arm)
            sealed = _run(folder, task, block, arm, found.failed)
            found.runs.append(sealed.summary)
            found.data.append(sealed.data)
    except CounterproofError as error:
        return error
    return None


def _run(folder: Path, task: dict[str, Any], block: int, arm: str, failed: list[dict[str, Any]]) -> _Sealed:
    """One place of the schedule, repeated as a whole when it fails; every failure is kept in `failed`."""
    for attempt in range(1, ATTEMPTS + 1):
        key = RunKey(block, arm, attempt)
        try:
            return _attempt(folder, task, key)
        except ExecutionError as error:
            failed.append({"block": block, "arm": arm, "attempt": attempt, "reason": str(error)})
            _tell("failed", block=block, arm=arm, attempt=attempt, reason=str(error))
            if attempt == ATTEMPTS:
                raise
    raise ExecutionError("no attempt was made")


def _attempt(folder: Path, task: dict[str, Any], key: RunKey) -> _Sealed:
    """One run, or (no block in `key`) one arm's equivalence phase."""
    block = 0 if key.block is None else key.block
    phase = "timed" if key.block is not None else "equivalence"
    place = folder / "runs" / key.name
    place.mkdir(parents=True)
    engine = task["arms"][key.arm]
    workload = task["workloads"][block] if key.block is not None else _few(folder, task)
    spec = RunSpec(
        target=task["target"],
        phase=phase,
        composition=key.block is None,
        engine=engine,
        workload=workload["path"],
        workload_sha256=workload["sha256"],
        warmup=task["warmup"]["path"],
        warmup_sha256=task["warmup"]["sha256"],
        concurrency=task["concurrency"],
        request_timeout_s=task["request_timeout_s"],
        folder=str(place),
        parent_pid=0,
    )
    with machine_lock(lambda: _tell("waiting")):
        began = time.monotonic()
        execute(spec, from_flat(engine).threads, task["run_deadline_s"], _requests)
        digest = _seal(place, task, key, workload["sha256"])
        seconds = time.monotonic() - began
    run = RunData(SealedRun(key, place, manifest.read(place), digest))
    if key.block is None:
        return _Sealed(run, outputs.rounding(run))
    return _Sealed(run, {**_summary(run, task), "manifest_sha256": digest, "seconds": round(seconds, 3)})


def _few(folder: Path, task: dict[str, Any]) -> dict[str, str]:
    """The first requests of the first block, for the equivalence phase."""
    first = task["workloads"][0]
    requests = sealed_requests.read(Path(first["path"]), first["sha256"])[: outputs.REQUESTS]
    path = folder / "workloads" / "equivalence.parquet"
    return {"path": str(path), "sha256": sealed_requests.write(path, requests)}


def _measure_rounding(folder: Path, task: dict[str, Any], found: _Found) -> None:
    """What rounding does to the arms in fast mode whose outputs part from others', where there are any.

    A search for counterexamples asks for none: it looks at outputs in its own way.
    """
    found.part()
    for arm in sorted({run["arm"] for run in found.runs if run["against"]}):
        if task["arms"][arm].get("numerics.mode") != outputs.FAST:
            continue
        _tell("rounding", arm=arm)
        try:
            found.rounding[arm] = _attempt(folder, task, RunKey(None, arm, 1)).summary
        except CounterproofError as error:
            # Not known means not forgiven: the verdict then counts these outputs as wrong.
            found.rounding[arm] = {"threshold": None, "invariant_sha256": None, "reason": str(error)}


def _seal(place: Path, task: dict[str, Any], key: RunKey, workload_sha256: str) -> str:
    raw = assemble.read_raw(place)
    record = assemble.build_environment(raw, task["environment"], [])
    arms = {arm: {"overrides": [], "config": config} for arm, config in task["arms"].items()}
    plan = {"study": task["packet_id"], "arms": arms, "composed": dict.fromkeys(arms, "")}
    return assemble.write_record(raw, key, plan, task["claim_id"], workload_sha256, record)


def _summary(run: RunData, task: dict[str, Any]) -> dict[str, Any]:
    measured = run_value(run, task["metric"], task["statistic"])
    return {
        "arm": run.arm,
        "block": run.block,
        "value": measured.value,
        "reason": measured.reason,
        "samples": measured.n,
        "failed_requests": int((run.requests["status"] != "ok").sum()),
        "outputs_sha256": [v if isinstance(v, str) else None for v in run.requests["output_sha256"]],
        "tokens_computed": run.counters.get("tokens_computed"),
        "output_tokens": int(run.requests["output_tokens"].fillna(0).sum()),
        "step_ms": _median_step(run),
        "bound_by": _bound_by(run, task),
        "kernel_path": run.effective.get(surroundings.KERNEL_PATH),
        "effective_sha256": canonical.sha256_json(run.effective),
    }


def _median_step(run: RunData) -> float | None:
    """Median duration of the target's steps in ms: what an injected delay moves whatever the metric is."""
    times = step_times(run)
    return float(np.median(times)) if times.size else None


def _bound_by(run: RunData, task: dict[str, Any]) -> str | None:
    """What the run was bound by on this machine; None where its roofs are not known or the metric sees both phases."""
    phase = bottleneck.phase_of(task["metric"])
    if phase is None or not task.get("roofs"):
        return None
    placed = bottleneck.place([run], phase, task["roofs"])
    return placed.bound_by if placed else None


def _requests(done: int, total: int) -> None:
    _tell("requests", done=done, of=total)


def _tell(kind: str, **fields: Any) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


def _fail(error: CounterproofError) -> int:
    _tell("error", code=error.exit_code, message=str(error), details=error.details)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
