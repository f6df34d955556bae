"""The measured process: one arm, one workload, one life. `python -m counterproof.run.worker_main` with a spec on
standard input; progress goes to file descriptor 3, raw results into the run folder's `raw/`, and everything that
is printed into the log. Tables are written by the harness, so that writing them cannot move this process's peaks.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from counterproof.errors import EXIT_EXECUTION, CounterproofError, InputError
from counterproof.plan.schema import ServerConfig
from counterproof.record import canonical, code_identity, machine
from counterproof.run import client_load, orphan
from counterproof.run.closed_loop import LoadRows
from counterproof.run.spec import RunSpec
from counterproof.run.targets import registry
from counterproof.run.targets.protocol import Logits, ServerKind, Target
from counterproof.workload import sealed
from intaglio.config import EngineConfig, from_flat
from intaglio.errors import ConfigError

PROGRESS_FD = 3
PROGRESS_NS = 2_000_000_000  # seldom: a tenth of a millisecond between two requests, which wait for it
RAW = "raw"


def main() -> int:
    """Run what the spec says. Returns an exit code of `counterproof.errors`."""
    spec = RunSpec.from_json(sys.stdin.read())
    orphan.die_with_parent(spec.parent_pid)
    report = Reporter()
    try:
        code_identity.check_origins(spec.origins)
        if spec.phase == "equivalence" and not spec.lossless:
            _quality(spec, report)
        elif spec.phase == "equivalence":
            _equivalence(spec, report)
        elif spec.phase == "probes":
            _probes(spec, report)
        else:
            _timed(spec, report)
    except CounterproofError as error:
        print(f"error: {error}", *error.details, sep="\n", file=sys.stderr)
        report.tell("error", code=error.exit_code, message=str(error), details=error.details)
        return error.exit_code
    except Exception as error:
        # The full trace belongs into the record's log; the harness gets one line.
        traceback.print_exc()
        report.tell("error", code=EXIT_EXECUTION, message=f"{type(error).__name__}: {error}", details=[])
        return EXIT_EXECUTION
    report.tell("finished")
    return 0


class Reporter:
    """One JSON line a message to the harness. A harness that is gone is no reason to fail."""

    def __init__(self) -> None:
        self._told_ns = 0

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a message."""
        try:
            os.write(PROGRESS_FD, json.dumps({"kind": kind, **fields}).encode() + b"\n")
        except OSError:
            return

    def count(self, done: int) -> None:
        """So many requests are done; told every two seconds at most: waking the harness holds up the next request."""
        now = time.perf_counter_ns()
        if now - self._told_ns >= PROGRESS_NS:
            self._told_ns = now
            self.tell("progress", done=done)


def _timed(spec: RunSpec, report: Reporter) -> None:
    requests = sealed.read(Path(spec.workload), spec.workload_sha256)
    warmup = sealed.read(Path(spec.warmup), spec.warmup_sha256)
    target = _start(spec)
    ready_ns = getattr(target, "ready_ns", None) or time.perf_counter_ns()
    report.tell("ready", total=len(requests))
    client_load.warm_up(target, warmup, spec.concurrency, spec.request_timeout_s)
    warm = target.counters()
    gc.collect()
    gc.freeze()
    observed = {"begin": _observe()}
    events = [_mark("measured_begin")]
    rows, client = client_load.run(target, requests, spec.concurrency, spec.request_timeout_s, report.count)
    events += [_mark("measured_end"), client]
    observed["end"] = _observe()
    counters = target.counters()
    result = {
        "startup_ms": (ready_ns - spec.spawned_ns) / 1e6,
        "counters": {name: value - warm.get(name, 0) for name, value in counters.items()},
        "warmup_counters": warm,
        "stamps": getattr(target, "stamps", "token"),
        **_facts(target, observed),
    }
    target.close()
    _write(spec, rows, [*events, *rows.readings.events], result)


def _equivalence(spec: RunSpec, report: Reporter) -> None:
    from counterproof.run import equivalence

    requests = sealed.read(Path(spec.workload), spec.workload_sha256)
    kind = registry.find(spec.target)
    events: list[dict[str, Any]] = []
    total = len(requests) * (2 if spec.composition else 1)
    report.tell("ready", total=total)
    fast: tuple[list[Logits], list[Logits]] | None = None
    if spec.composition:
        baseline = kind.start(_engine(spec))
        fast = equivalence.fast_results(baseline, requests, report.count)
        baseline.close()
    target = kind.start(from_flat({"numerics.mode": "invariant"}, _engine(spec)))
    ready_ns = time.perf_counter_ns()
    results = target.compute_logits(requests)
    if fast is not None:
        events.append(equivalence.rounding_event(requests, *fast, results))
    events += [*equivalence.digests(requests, results), *target.drain().events]
    report.count(total)
    rows = equivalence.rows(requests, results)
    result = {
        "startup_ms": (ready_ns - spec.spawned_ns) / 1e6,
        "counters": target.counters(),
        "warmup_counters": {},
        **_facts(target, {"end": _observe()}),
    }
    target.close()
    _write(spec, rows, events, result)


def _probes(spec: RunSpec, report: Reporter) -> None:
    from counterproof.run import probes

    load = probes.Load(
        requests=sealed.read(Path(spec.workload), spec.workload_sha256),
        warmup=sealed.read(Path(spec.warmup), spec.warmup_sha256),
        duplicates=sealed.read(Path(spec.duplicates), spec.duplicates_sha256),
        concurrency=spec.concurrency,
        timeout_s=spec.request_timeout_s,
    )
    target = _start(spec)
    ready_ns = getattr(target, "ready_ns", None) or time.perf_counter_ns()
    report.tell("ready", total=len(load.requests))
    found = probes.run(target, load, report.count, abnormal=spec.abnormal)
    result = {
        "startup_ms": (ready_ns - spec.spawned_ns) / 1e6,
        "counters": found.counters,
        "warmup_counters": found.before,
        "stamps": getattr(target, "stamps", "token"),
        **_facts(target, {"end": _observe()}),
    }
    target.close()
    _write(spec, found.rows, [*found.events, *found.rows.readings.events], result, found.abnormal)


def _start(spec: RunSpec) -> Target:
    kind = registry.find(spec.target)
    if isinstance(kind, ServerKind):
        return kind.connect(_engine(spec), ServerConfig(**spec.server), Path(spec.folder))
    return kind.start(_engine(spec))


def _quality(spec: RunSpec, report: Reporter) -> None:
    from counterproof.run import equivalence, quality

    requests = sealed.read(Path(spec.workload), spec.workload_sha256)
    report.tell("ready", total=len(requests))
    reference = None if spec.reference is None else _config(spec.reference)
    kind = registry.find(spec.target)
    phase = quality.run_phase(kind, _engine(spec), reference, requests, report.count)
    result = {
        "startup_ms": (phase.ready_ns - spec.spawned_ns) / 1e6,
        "counters": phase.target.counters(),
        "warmup_counters": {},
        **_facts(phase.target, {"end": _observe()}),
    }
    events = [*phase.events, *phase.target.drain().events]
    phase.target.close()
    _write(spec, equivalence.rows(requests, phase.results), events, result)


def _engine(spec: RunSpec) -> EngineConfig:
    return _config(spec.engine)


def _config(flat: dict[str, Any]) -> EngineConfig:
    try:
        return from_flat(flat)
    except ConfigError as error:
        raise InputError(f"engine.{error}") from error


def _facts(target: Target, observed: dict[str, Any]) -> dict[str, Any]:
    effective = target.effective_config()
    variables = machine.variables()
    identity = {
        **target.identity(),
        "env.names": ",".join(variables),
        "env.sha256": canonical.sha256_json(variables),
    }
    if effective.get("device") == "cuda":
        identity |= machine.gpu_identity()
        observed |= machine.gpu_observation()
    return {"effective": effective, "identity": identity, "observed": observed}


def _observe() -> dict[str, Any]:
    return {"time_ns": time.perf_counter_ns(), **machine.observation()}


def _mark(kind: str) -> dict[str, Any]:
    return {"time_ns": time.perf_counter_ns(), "kind": kind}


def _write(
    spec: RunSpec,
    rows: LoadRows,
    events: list[dict[str, Any]],
    result: dict[str, Any],
    abnormal: Iterable[dict[str, Any]] = (),
) -> None:
    raw = Path(spec.folder) / RAW
    raw.mkdir()
    events.sort(key=lambda event: event["time_ns"])
    for name, lines in (
        ("requests", rows.requests),
        ("tokens", rows.tokens),
        ("chunks", rows.chunks),
        ("stages", rows.readings.stages),
        ("gauges", rows.readings.gauges),
        ("outputs", rows.outputs),
        ("events", events),
        ("abnormal", abnormal),
    ):
        _write_lines(raw / f"{name}.jsonl", lines)
    # Written last: its presence says that the others are whole.
    (raw / "result.json").write_text(json.dumps(result, default=str), encoding="utf-8")


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, default=str) + "\n")


if __name__ == "__main__":
    sys.exit(main())
