"""Fifty faults at random moments: nothing sealed is lost, every event is recorded, every study completes or says why not.

    python benchmarks/injections.py                      the tiny model, fifty faults, about fifteen minutes on two cores
    python benchmarks/injections.py --count 10 --seed 3  fewer, other moments

Two kinds of injection, in random order. A fault of run/faults strikes a small study at a random moment of its run. A
`kill_study` kills `counterproof run` itself, anywhere from its first line to its last, registration, judgement and
reports included, and takes it up again, up to five times a study; after each kill every sealed file must be there as it was.

The outcome goes to benchmarks/results/injections.json. Exit code 1 if anything sealed was lost, an event is not accounted
for, an answer changed, or a study neither completed nor said why not; also if the deadline came first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from counterproof.errors import EXIT_INVALID, EXIT_OK
from counterproof.record import canonical, code_identity, journal, manifest
from counterproof.record.store import Store, StudyPaths
from counterproof.record.verify import verify_study
from counterproof.run import places
from counterproof.run.faults import registry, suite
from counterproof.run.faults.bench import Bench
from counterproof.run.faults.fault import HONEST, NOT_APPLICABLE, NOT_RECOVERED, RECOVERED

KILL_STUDY = "kill_study"
FAULTS = ("kill_run", "kill_harness", "full_disk", "slow_disk", "clock_step", "pool_exhausted")
# As many kills of whole studies as of everything else: they alone hit registration, judgement and reports.
DRAWN = (*FAULTS, *([KILL_STUDY] * len(FAULTS)))
RESULT = Path(__file__).resolve().parent / "results" / "injections.json"
TINY = ("engine=tiny", "workload.max_new_tokens=24")
WHOLE = ("study.blocks=1", "study.equivalence_requests=1", "study.probes=false", "study.attempts=50")
KILLS_A_STUDY = 5
LATEST_KILL_S = 25.0
LATEST_STRIKE_S = 1.5
ENDS_S = 300.0


def main() -> int:
    """Run the injections and write what came of them."""
    args = _arguments()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="injections-"))
    try:
        store = Store(folder).create()
        rows = inject(store, args, began + args.deadline_s)
        unsaid = unaccounted(store)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = summary(rows, unsaid, args, time.monotonic() - began)
    args.result.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    return 0 if result["passed"] else 1


def inject(store: Store, args: argparse.Namespace, deadline: float) -> list[dict[str, Any]]:
    """So many faults, drawn at random; those of run/faults with a small study each. Stops at the deadline.

    One that came too late to do anything is kept as a row and drawn again: it is no injection.
    """
    chance = random.Random(args.seed)
    bench = Bench(store, args.experiment, TINY, seed=args.seed, longest_s=LATEST_STRIKE_S)
    torment = Torment(store, args.experiment, chance)
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    while (done := effective(rows)) < args.count and time.monotonic() < deadline:
        name = chance.choice(DRAWN)
        rows += [torment.strike()] if name == KILL_STUDY else suite.run_faults(registry.choose([name]), bench)
        done = effective(rows)
        left = (time.monotonic() - began) / max(1, done) * (args.count - done) / 60
        said = f"{rows[-1]['outcome']}; {rows[-1]['detail']}"
        print(f"[{done:>2}/{args.count}] {name}: {said} (about {left:.0f} min left)", file=sys.stderr)
    rows += torment.finish()
    return rows


def effective(rows: list[dict[str, Any]]) -> int:
    """How many of them did something."""
    return sum(row["outcome"] != NOT_APPLICABLE for row in rows)


class Torment:
    """Studies whose harness is killed at any moment of its life and started again."""

    def __init__(self, store: Store, experiment: str, chance: random.Random) -> None:
        self._store = store
        self._experiment = experiment
        self._chance = chance
        self._studies = 0
        self._kills = KILLS_A_STUDY  # of the study at hand; the first strike begins one
        self._known: dict[str, str] = {}

    def strike(self) -> dict[str, Any]:
        """Start or resume a study, kill it at a random moment, and look at what was sealed. One row."""
        if self._kills == KILLS_A_STUDY:
            self._studies, self._kills, self._known = self._studies + 1, 0, {}
        self._kills += 1
        moment = self._chance.uniform(0.0, LATEST_KILL_S)
        ended = self._start(moment)
        if ended is not None and ended not in (EXIT_OK, EXIT_INVALID):
            return self._row(NOT_RECOVERED, f"{self._name} ended with code {ended}: {self._tail()}")
        lost = self._lost()
        if lost:
            return self._row(NOT_RECOVERED, f"{self._name}: sealed files changed or gone: {lost[:3]}")
        if ended is not None:
            self._kills = KILLS_A_STUDY
            return self._row(
                NOT_APPLICABLE, f"{self._name} was complete before its kill after {moment:.1f} s"
            )
        if self._kills == KILLS_A_STUDY:
            return self._complete(moment)
        return self._row(HONEST, f"{self._name} killed {moment:.1f} s after its start, {self._state()}")

    def finish(self) -> list[dict[str, Any]]:
        """Let the study at hand complete. One row more if it does not."""
        if self._kills == KILLS_A_STUDY:
            return []
        row = self._complete(None)
        return [row] if row["outcome"] == NOT_RECOVERED else []

    @property
    def _name(self) -> str:
        return f"whole-{self._studies}"

    @property
    def _paths(self) -> StudyPaths:
        return self._store.new_study(self._name)

    @property
    def _log(self) -> Path:
        return self._store.root / f"{self._name}.log"

    def _start(self, kill_after_s: float) -> int | None:
        """The harness's exit code; None if it was killed first."""
        if self._paths.plan.is_file():
            arguments = ["resume", self._name]
        else:
            arguments = ["run", self._experiment, "--exploratory", "--study", self._name, *TINY, *WHOLE]
        with self._log.open("ab") as log:
            harness = subprocess.Popen(
                [sys.executable, "-m", "counterproof", *arguments],
                env={**os.environ, "COUNTERPROOF_STORE": str(self._store.root)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            return harness.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            harness.send_signal(signal.SIGKILL)
            harness.wait()
            return None

    def _complete(self, moment: float | None) -> dict[str, Any]:
        """Resume without a kill: now it must come to its end, judged."""
        code = self._start(ENDS_S)
        judged = all(path.is_file() for path in (self._paths.comparison, self._paths.decision))
        # A view that cannot be brought up to date is a loss too, if not of evidence.
        viewed = judged and journal.read(self._paths.journal).events[-1]["kind"] != "view_failed"
        if code not in (EXIT_OK, EXIT_INVALID) or not viewed or self._lost():
            return self._row(NOT_RECOVERED, f"{self._name} did not complete (code {code}): {self._tail()}")
        killed = "" if moment is None else f" killed {moment:.1f} s after its start,"
        return self._row(RECOVERED, f"{self._name}{killed} complete and judged, {self._state()}")

    def _lost(self) -> list[str]:
        """Sealed files that were there after the last kill and are not, or not the same, now."""
        now = {
            f"{folder.name}/{name}": canonical.sha256_file(folder / name)
            for folder in (self._paths.run_folders() if self._paths.runs.is_dir() else ())
            if manifest.is_sealed(folder)
            for name in [*manifest.list_files(folder), manifest.FILE_NAME]
        }
        lost = [name for name, digest in self._known.items() if now.get(name) != digest]
        self._known = now
        return lost

    def _state(self) -> str:
        if not self._paths.journal.is_file():
            return "before it was registered"
        events = journal.read(self._paths.journal).events
        kinds = Counter(event["kind"] for event in events)
        return f"{kinds['run_sealed']} runs sealed, {kinds['run_lost']} lost, last event {events[-1]['kind']}"

    def _tail(self) -> str:
        with contextlib.suppress(OSError):
            return " | ".join(self._log.read_text(errors="replace").splitlines()[-4:])
        return "no log"

    def _row(self, outcome: str, detail: str) -> dict[str, Any]:
        none = ("detected_after_s", "recovered_after_s", "outputs_identical")
        return {"fault": KILL_STUDY, "outcome": outcome, "detail": detail, **dict.fromkeys(none)}


def unaccounted(store: Store) -> list[str]:
    """What no journal explains: an open attempt, a run folder nobody began; raises for anything sealed that changed."""
    found = []
    for folder in store.study_folders():
        verify_study(folder)
        events = journal.read(folder / journal.FILE_NAME).events
        found += [f"{folder.name}: {run} is open" for run in places.open_attempts(events)]
        begun = {event["run"] for event in events if event["kind"] == "run_started"}
        runs = folder / "runs"
        found += [
            f"{folder.name}: {run.name}"
            for run in (runs.iterdir() if runs.is_dir() else ())
            if run.name not in begun
        ]
    return found


def summary(
    rows: list[dict[str, Any]], unsaid: list[str], args: argparse.Namespace, took_s: float
) -> dict[str, Any]:
    """What is written and printed."""
    outcomes = Counter(f"{row['fault']}: {row['outcome']}" for row in rows)
    bad = [f"{row['fault']}: {row['detail']}" for row in rows if row["outcome"] == NOT_RECOVERED]
    idle = [f"{row['fault']}: {row['detail']}" for row in rows if row["outcome"] == NOT_APPLICABLE]
    changed = sum(row["outputs_identical"] is False for row in rows)
    return {
        "passed": not (bad or unsaid or changed) and effective(rows) >= args.count,
        "count": effective(rows),
        "asked": args.count,
        "seed": args.seed,
        "experiment": args.experiment,
        "commit": code_identity.identify().as_dict().get("sha"),
        "measured_utc": journal.now_utc(),
        "took_s": round(took_s, 1),
        "outcomes": dict(sorted(outcomes.items())),
        "not_recovered": bad,
        "without_effect": idle,
        "unaccounted": unsaid,
        "outputs_changed": changed,
        "detected_after_s": _range(rows, "detected_after_s"),
        "recovered_after_s": _range(rows, "recovered_after_s"),
    }


def _range(rows: list[dict[str, Any]], field: str) -> dict[str, float] | None:
    values = sorted(row[field] for row in rows if row[field] is not None)
    return {"n": len(values), "median": values[len(values) // 2], "largest": values[-1]} if values else None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=50, help="how many injections (default: 50)")
    parser.add_argument("--seed", type=int, default=20261129, help="of faults and moments")
    parser.add_argument("--experiment", default="kv_cache", help="default: kv_cache")
    parser.add_argument("--deadline-s", type=float, default=3600.0, help="begin no injection after it (3600)")
    parser.add_argument("--result", type=Path, default=RESULT, help=f"default: {RESULT.name} in results/")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
