"""Fifty faults at random moments: nothing sealed is lost, every event is recorded, every study completes or says why not.

    python benchmarks/injections.py                      the tiny model, fifty faults, about twenty minutes
    python benchmarks/injections.py --count 10 --seed 3  fewer, other moments

The outcome goes to benchmarks/results/injections.json; exit code 1 if anything was lost or left unsaid.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from counterproof.record import journal
from counterproof.record.store import Store
from counterproof.record.verify import verify_study
from counterproof.run import places
from counterproof.run.faults import registry, suite
from counterproof.run.faults.bench import Bench
from counterproof.run.faults.fault import NOT_RECOVERED

FAULTS = ("kill_run", "kill_harness", "full_disk", "slow_disk", "clock_step")
RESULT = Path(__file__).resolve().parent / "results" / "injections.json"
TINY = ("engine=tiny", "workload.prompt_tokens=40", "workload.max_new_tokens=8")


def main() -> int:
    """Run the injections and write what came of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=20261129)
    parser.add_argument("--experiment", default="kv_cache")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="injections-"))
    try:
        store = Store(folder).create()
        rows = inject(store, args.experiment, args.count, args.seed)
        unsaid = unaccounted(store)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outcomes = Counter(f"{row['fault']}: {row['outcome']}" for row in rows)
    result = {
        "count": len(rows),
        "seed": args.seed,
        "experiment": args.experiment,
        "outcomes": dict(sorted(outcomes.items())),
        "unaccounted": unsaid,
        "outputs_changed": sum(row["outputs_identical"] is False for row in rows),
        "detected_after_s": _range(rows, "detected_after_s"),
        "recovered_after_s": _range(rows, "recovered_after_s"),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    bad = unsaid or result["outputs_changed"] or any(row["outcome"] == NOT_RECOVERED for row in rows)
    return 1 if bad else 0


def inject(store: Store, experiment: str, count: int, seed: int) -> list[dict[str, Any]]:
    """So many faults, drawn at random, each with a small study of its own."""
    chance = random.Random(seed)
    bench = Bench(store, experiment, TINY, seed=seed, longest_s=3.0)
    drawn = [chance.choice(FAULTS) for _ in range(count)]
    rows = []
    for number, name in enumerate(drawn):
        rows += suite.run_faults(registry.choose([name]), bench)
        print(
            f"[{number + 1:>2}/{count}] {name}: {rows[-1]['outcome']}; {rows[-1]['detail']}", file=sys.stderr
        )
    return rows


def unaccounted(store: Store) -> list[str]:
    """What no journal explains: an open attempt, a run folder nobody began; raises for anything sealed that changed."""
    found = []
    for folder in store.study_folders():
        verify_study(folder)
        events = journal.read(folder / journal.FILE_NAME).events
        found += [f"{folder.name}: {run} is open" for run in places.open_attempts(events)]
        begun = {event["run"] for event in events if event["kind"] == "run_started"}
        found += [
            f"{folder.name}: {run.name}" for run in (folder / "runs").iterdir() if run.name not in begun
        ]
    return found


def _range(rows: list[dict[str, Any]], field: str) -> dict[str, float] | None:
    values = sorted(row[field] for row in rows if row[field] is not None)
    return {"n": len(values), "median": values[len(values) // 2], "largest": values[-1]} if values else None


if __name__ == "__main__":
    sys.exit(main())
