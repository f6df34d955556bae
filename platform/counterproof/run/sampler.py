"""A process that watches the measured one from outside: memory, CPU time, threads, load and clock.

`python -m counterproof.run.sampler PID FILE HARNESS_PID` writes one JSON row every 50 ms until PID is gone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import psutil

from counterproof.run import orphan

HERTZ = 20
# The clock is read from a long text of the kernel's and a device's memory by a tool, so not with every sample.
CLOCK_EVERY = 20


def main(arguments: list[str]) -> int:
    """Sample until the watched process has ended."""
    pid, path, harness = int(arguments[0]), Path(arguments[1]), int(arguments[2])
    orphan.die_with_parent(harness)
    with path.open("w", encoding="utf-8") as stream:
        watch(pid, stream)
    return 0


def watch(pid: int, stream: TextIO) -> None:
    """Write samples of `pid` to `stream`, one line each, until it is gone or a zombie."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    number = 0
    next_time = time.perf_counter()
    while (row := _sample(process, number % CLOCK_EVERY == 0)) is not None:
        stream.write(json.dumps(row) + "\n")
        stream.flush()
        number += 1
        next_time += 1 / HERTZ
        delay = next_time - time.perf_counter()
        if delay > 0:
            time.sleep(delay)
        else:
            next_time = time.perf_counter()


def _sample(process: psutil.Process, with_clock: bool) -> dict[str, Any] | None:
    try:
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            memory = process.memory_info()
            cpu = process.cpu_times()
            threads = process.num_threads()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    row: dict[str, Any] = {
        "time_ns": time.perf_counter_ns(),
        "source": "sampler",
        "rss_bytes": memory.rss,
        "cpu_seconds": cpu.user + cpu.system,
        "threads": threads,
        "load1": os.getloadavg()[0],
    }
    if with_clock:
        from counterproof.record import machine

        row["cpu_mhz"] = machine.cpu_mhz()
        row["gpu_used_bytes"] = machine.gpu_used_bytes()
    return row


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
