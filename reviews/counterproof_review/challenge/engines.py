"""Warm engines: one process an arm, started as a replay starts its own, answering load after load.

A probe only nominates, so that it may use an engine that has answered others before; what is nominated is measured
again in fresh processes (fresh.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd
import pyarrow as pa

from counterproof.errors import (
    EXIT_INPUT,
    EXIT_SETUP,
    CounterproofError,
    ExecutionError,
    InputError,
    SetupError,
)
from counterproof.measure.load import RunData
from counterproof.record.schema import TABLES
from counterproof.record.store import RunKey
from counterproof.record.verify import SealedRun
from counterproof.run.child_env import child_environment
from counterproof.run.machine_lock import machine_lock
from counterproof.workload.sealed import SealedRequest
from counterproof_review.challenge.bench import Bench
from counterproof_review.challenge.workload import Load
from intaglio.config import from_flat

MODULE = "counterproof_review.challenge.engine_worker"
_KINDS: dict[int, type[CounterproofError]] = {EXIT_INPUT: InputError, EXIT_SETUP: SetupError}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "PYTHONHASHSEED", "PYTHONUNBUFFERED")
_END_SECONDS = 10.0


@dataclass(frozen=True)
class WarmRun(RunData):
    """One load as a warm engine ran it, with the tables of a sealed run: requests, tokens, resources."""

    rows: Mapping[str, Any]
    seconds: float

    @cached_property
    def effective(self) -> dict[str, Any]:
        found: dict[str, Any] = self.rows["effective"]
        return found

    def texts(self) -> list[tuple[int, ...]]:
        """Output tokens by request."""
        found: list[list[int]] = [[] for _ in self.rows["requests"]]
        for row in self.rows["tokens"]:
            found[row["request_index"]].append(row["token_id"])
        return [tuple(tokens) for tokens in found]

    def _table(self, name: str) -> pd.DataFrame:
        key = {"resources.parquet": "gauges"}.get(name, name.removesuffix(".parquet"))
        schema = TABLES[name]
        rows = [{column: row.get(column) for column in schema.names} for row in self.rows[key]]
        frame: pd.DataFrame = pa.Table.from_pylist(rows, schema=schema).to_pandas()
        return frame


class Engine:
    """The process of one arm. Raises as it reports: InputError, SetupError, ExecutionError."""

    def __init__(self, bench: Bench, role: str, mode: str | None) -> None:
        self._bench, self._role = bench, role
        config = bench.config(role, mode)
        threads = child_environment(from_flat(config).threads)
        environment = {**bench.around.environment, **{name: threads[name] for name in _THREADS}}
        self._log = bench.work / f"engine-{role}-{mode or 'declared'}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                bench.around.command("-P", "-m", MODULE, str(os.getpid())),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=bench.work,
                start_new_session=True,
            )
        self._buffer = b""
        try:
            answer = self._ask({"target": bench.lock["target"], "engine": config})
        except BaseException:
            self.close()
            raise
        self.effective: dict[str, Any] = answer["effective"]

    def run(self, files: Mapping[str, str], slots: int) -> WarmRun:
        """Run one load that `Bench.write` wrote; `files`: workload and warmup with their digests."""
        out = self._bench.work / f"answer-{self._process.pid}.json"
        answer = self._ask(
            {**files, "concurrency": slots, "timeout_s": self._bench.timeout_s, "out": str(out)}
        )
        rows = json.loads(out.read_text(encoding="utf-8"))
        out.unlink()
        facts = {"counters": rows["counters"], "stamps": "token"}
        sealed = SealedRun(RunKey(0, self._role, 1), Path(self._role), facts, "")
        return WarmRun(sealed, rows, float(answer["seconds"]))

    def close(self) -> None:
        """End the process, whatever it does."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        sender = self._process.stdin
        if sender is None:
            raise ExecutionError("a warm engine has no standard input")
        with contextlib.suppress(BrokenPipeError):
            sender.write(json.dumps(message).encode() + b"\n")
            sender.flush()
        answer: dict[str, Any] = json.loads(self._line())
        if answer["kind"] == "error":
            kind = _KINDS.get(answer["code"], ExecutionError)
            raise kind(answer["message"], details=answer["details"])
        return answer

    def _line(self) -> bytes:
        stream = self._process.stdout
        if stream is None:
            raise ExecutionError("a warm engine has no standard output")
        allowed = float(self._bench.lock["run_deadline_s"])
        deadline = time.monotonic() + allowed
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                self._process.kill()
                raise ExecutionError(f"a load did not end within its deadline of {allowed:g} s")
            data = os.read(stream.fileno(), 1 << 16)
            if not data:
                raise ExecutionError("a warm engine died", details=self._tail())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _tail(self) -> list[str]:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [f"log: {line}" for line in lines[-8:]]


class Engines:
    """The warm engines of a search, started when first needed and again after one died."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._live: dict[tuple[str, str | None], Engine] = {}
        self.restarts = 0

    def __enter__(self) -> Engines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all of them."""
        while self._live:
            self._live.popitem()[1].close()

    def get(self, role: str, mode: str | None = None) -> Engine:
        """The engine of an arm, in the numerics it declares or in `mode`."""
        key = (role, mode)
        if key not in self._live:
            self._live[key] = Engine(self._bench, role, mode)
        return self._live[key]

    def exact(self, role: str) -> str | None:
        """The mode in which an arm's outputs can be compared bit by bit: None, as declared, or "invariant"."""
        return None if self.get(role).effective.get("numerics.mode") == "invariant" else "invariant"

    @contextlib.contextmanager
    def loaded(self, load: Load) -> Iterator[dict[str, str]]:
        """The files of a load, removed afterwards."""
        with self.written(load.requests) as requests, self.written(load.warmup) as warmup:
            yield {
                "workload": requests["path"],
                "workload_sha256": requests["sha256"],
                "warmup": warmup["path"],
                "warmup_sha256": warmup["sha256"],
            }

    @contextlib.contextmanager
    def written(self, requests: Sequence[SealedRequest]) -> Iterator[dict[str, str]]:
        """One file of requests, removed afterwards."""
        found = self._bench.write(requests)
        try:
            yield found
        finally:
            Path(found["path"]).unlink(missing_ok=True)

    def run(self, role: str, load: Load, mode: str | None = None) -> WarmRun:
        """Run a load alone on this machine. An engine that fails is let go of; the error goes through."""
        with self.loaded(load) as files, machine_lock():
            try:
                return self.get(role, mode).run(files, load.concurrency)
            except BaseException:
                self.drop(role, mode)
                raise

    def drop(self, role: str, mode: str | None = None) -> None:
        """Let an engine go, so that the next load finds a fresh one."""
        engine = self._live.pop((role, mode), None)
        if engine is not None:
            engine.close()
            self.restarts += 1
