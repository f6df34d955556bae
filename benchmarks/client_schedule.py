"""How well the client keeps a schedule: requests at a given rate against a server that answers at once.

    python benchmarks/client_schedule.py --rate 1000 --seconds 5

Prints one line of JSON: how late requests left (from the scheduled moment to the moment their bytes were written),
the client's share of a core, and how long it was away from its sockets. It fails when p99 is over a millisecond.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from pathlib import Path

from counterproof.plan.schema import ServerConfig
from counterproof.run import client_load
from counterproof.run.targets.http.kinds import OpenAiServer
from counterproof.workload.arrivals import arrivals
from counterproof.workload.sealed import SealedRequest
from intaglio.config import from_flat

COMMAND = ["{python}", "-m", "counterproof.run.targets.http.null_server", "--port", "{port}"]
LIMIT_US = 1000.0


def main(arguments: list[str]) -> int:
    """Measure once. Returns 1 when the schedule was not kept."""
    parser = argparse.ArgumentParser(description="How well the client keeps a schedule.")
    parser.add_argument("--rate", type=float, default=1000.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=1)
    options = parser.parse_args(arguments)
    count = max(1, round(options.rate * options.seconds))
    times = arrivals("poisson", count, rate_per_s=options.rate, cv=1.0, seed="schedule")
    prompt = tuple(range(2, 2 + options.prompt_tokens))
    work = [SealedRequest(i, prompt, options.new_tokens, seed=i, arrival_ns=times[i]) for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        server = ServerConfig(command=COMMAND, metrics_path=None, ready_s=60.0)
        target = OpenAiServer().connect(from_flat({"model": "tiny"}), server, Path(folder))
        try:
            client_load.run(target, work[:50], 1, 30.0)
            gc.collect()
            gc.freeze()
            rows, client = client_load.run(target, work, 1, 30.0)
        finally:
            target.close()
    late = sorted(row["sent_ns"] - row["scheduled_ns"] for row in rows.requests)
    p99 = late[-(-99 * count // 100) - 1] / 1e3
    failed = sum(row["status"] != "ok" for row in rows.requests)
    kept = p99 <= LIMIT_US and not failed
    print(
        json.dumps({"rate": options.rate, "sent_late_p99_us": p99, "failed": failed, "kept": kept, **client})
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
