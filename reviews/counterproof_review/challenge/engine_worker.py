"""One arm's engine, kept warm for probes: `python -m counterproof_review.challenge.engine_worker PARENT_PID`.

The first line on standard input is `{"target", "engine"}`; every further one a load, `{"workload", "workload_sha256",
"warmup", "warmup_sha256", "concurrency", "timeout_s", "out"}`. What a load gave is written to `out` as JSON; each line
is answered by one, `{"kind": "ready" | "done" | "error", ...}`. Whatever else is printed goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from counterproof.errors import EXIT_EXECUTION, CounterproofError, ExecutionError, InputError
from counterproof.run import client_load, orphan
from counterproof.run.closed_loop import ClosedLoop
from counterproof.run.targets import registry
from counterproof.run.targets.protocol import Target
from counterproof.workload import sealed
from counterproof_review.packet import guard
from intaglio.config import from_flat
from intaglio.errors import ConfigError


def main() -> int:
    """Serve loads until standard input ends; the exit code is that of counterproof.errors."""
    orphan.die_with_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(kind: str, **fields: Any) -> None:
        answers.write(json.dumps({"kind": kind, **fields}) + "\n")
        answers.flush()

    target: Target | None = None
    for line in sys.stdin:
        try:
            message = json.loads(line)
            if target is None:
                target = _start(message)
                tell("ready", effective=target.effective_config())
            else:
                tell("done", seconds=_load(target, message))
        except CounterproofError as error:
            tell("error", code=error.exit_code, message=str(error), details=error.details)
            return error.exit_code
        except Exception as error:
            traceback.print_exc()
            tell("error", code=EXIT_EXECUTION, message=f"{type(error).__name__}: {error}", details=[])
            return EXIT_EXECUTION
    if target is not None:
        target.close()
    return 0


def _start(message: dict[str, Any]) -> Target:
    if not guard.installed():
        raise ExecutionError("the network guard is not in place, so nothing was run")
    try:
        return registry.find(message["target"]).start(from_flat(message["engine"]))
    except ConfigError as error:
        raise InputError(f"engine.{error}") from error


def _load(target: Target, message: dict[str, Any]) -> float:
    """Run one load; returns the seconds that it took."""
    requests = sealed.read(Path(message["workload"]), message["workload_sha256"])
    warmup = sealed.read(Path(message["warmup"]), message["warmup_sha256"])
    timeout_s = message["timeout_s"]
    ClosedLoop(target, warmup, message["concurrency"], timeout_s).run()
    target.drain()
    before = target.counters()
    began = time.monotonic()
    rows, _ = client_load.run(target, requests, message["concurrency"], timeout_s)
    seconds = time.monotonic() - began
    found = {
        "requests": rows.requests,
        "tokens": rows.tokens,
        "gauges": rows.readings.gauges,
        "counters": {name: value - before.get(name, 0) for name, value in target.counters().items()},
        "effective": target.effective_config(),
    }
    Path(message["out"]).write_text(json.dumps(found, default=str), encoding="utf-8")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
