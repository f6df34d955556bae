"""A process that watches a server from outside: memory and CPU time of it and its children, and its own gauges.

`python -m counterproof.run.targets.http.watch PID FILE PARENT URL_JSON` writes JSON rows until PID is gone. Gauges
are asked for a few times a second only, since answering costs the server time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import psutil

from counterproof.run import orphan
from counterproof.run.targets.http import fetch
from counterproof.run.targets.http.pool import Address

SERVER_SAMPLES = "server_samples.jsonl"
HERTZ = 20
GAUGES_EVERY = 5

# What servers call the requests they hold: the first name of each line that a server shows is taken.
GAUGES: dict[str, tuple[str, ...]] = {
    "running": ("intaglio_running", "vllm:num_requests_running", "llamacpp:requests_processing"),
    "waiting": ("intaglio_waiting", "vllm:num_requests_waiting", "llamacpp:requests_deferred"),
    "kv_blocks_used": ("intaglio_kv_blocks_used",),
    "kv_blocks_total": ("intaglio_kv_blocks_total",),
    "kv_bytes_used": ("intaglio_kv_bytes_used",),
}


def main(arguments: list[str]) -> int:
    """Sample until the watched process has ended."""
    pid, path, parent, where = (
        int(arguments[0]),
        Path(arguments[1]),
        int(arguments[2]),
        json.loads(arguments[3]),
    )
    orphan.die_with_parent(parent)
    address = Address(where["name"], where["port"], where["tls"])
    key = os.environ.get(where["key_variable"] or "", "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with path.open("w", encoding="utf-8") as stream:
        watch(pid, stream, address, where["metrics_path"], headers)
    return 0


def watch(
    pid: int, stream: TextIO, address: Address, metrics_path: str | None, headers: Mapping[str, str]
) -> None:
    """Write rows of source `sampler` and, where the server shows gauges, `engine`."""
    number = 0
    next_time = time.perf_counter()
    while (row := family_row(pid)) is not None:
        _write(stream, row)
        if metrics_path and number % GAUGES_EVERY == 0:
            gauges = gauge_row(fetch.metrics(address, metrics_path, headers))
            if gauges:
                _write(stream, gauges)
        number += 1
        next_time = max(next_time + 1 / HERTZ, time.perf_counter())
        time.sleep(max(0.0, next_time - time.perf_counter()))


def family_row(pid: int) -> dict[str, Any] | None:
    """Resident memory, CPU seconds and threads of a process and its descendants, None when it is gone.

    Memory that several of them share is counted for each, as the sum of resident sets is.
    """
    try:
        parent = psutil.Process(pid)
        if parent.status() == psutil.STATUS_ZOMBIE:
            return None
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None
    rss = threads = 0
    seconds = 0.0
    for process in family:
        try:
            with process.oneshot():
                rss += process.memory_info().rss
                times = process.cpu_times()
                seconds += times.user + times.system
                threads += process.num_threads()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return {
        "time_ns": time.perf_counter_ns(),
        "source": "sampler",
        "rss_bytes": rss,
        "cpu_seconds": seconds,
        "threads": threads,
        "load1": os.getloadavg()[0],
    }


def gauge_row(found: Mapping[str, float]) -> dict[str, Any]:
    """The server's gauges under the record's names; {} when it does not even show how many requests run."""
    row: dict[str, Any] = {}
    for column, names in GAUGES.items():
        known = [name for name in names if name in found]
        if known:
            row[column] = int(found[known[0]])
    return {"time_ns": time.perf_counter_ns(), "source": "engine", **row} if "running" in row else {}


def _write(stream: TextIO, row: Mapping[str, Any]) -> None:
    stream.write(json.dumps(row) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
