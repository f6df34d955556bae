"""Can the complete rule be trusted? Thirty-six studies whose truth is known: equal arms, 20 % slower, 5 % slower.

    make calibrate                                     twelve of each kind, about 45 minutes on a quiet machine
    python -m benchmarks.calibrate --each 2            fewer of each
    python -m benchmarks.calibrate --each 2 --fresh    begin again, whatever an earlier call has finished
    taskset -c 0 python -m benchmarks.calibrate --part 1/2 &
    taskset -c 1 python -m benchmarks.calibrate --part 2/2; wait; make calibrate
                                                       on two cores side by side, then the checks; give each part a
                                                       COUNTERPROOF_MACHINE_LOCK of its own, or they wait for each other

Every study is one of `experiments/planted_delay.yaml` on the tiny model: registered, run in blocks of four arms with
fresh processes, probed, compared and decided by the functions behind `counterproof run`. The candidate's engine waits
actively after each step. How long is worked out beforehand from the time of a step as the latest study's baseline
showed it (before the first: a short exploratory study), and each row tells what share of its own baseline's step it
came to. Equal arms get 1 microsecond, since arms without any difference are refused. Kinds alternate, so that a drift
of the machine meets them all. What is finished is kept in the store and not run again. Then come the checks:

  A/A     claims something (a gain, a loss, a harm) in at most 1 study
  20 %    is found (a loss beyond the floor, or harm) in every study
  5 %     is found, or inconclusive with the minimum detectable effect (MDE) beside it, and never called no effect

Rows, checks and versions go to benchmarks/results/calibration.json; exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.calibration_rows import AA_US, KINDS, checks, row_of, table
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from counterproof.errors import EXIT_INTERRUPTED, CounterproofError, InputError
from counterproof.plan.checks import refuse_dirty
from counterproof.record import atomic, canonical, code_identity
from counterproof.record.journal import Journal, now_utc
from counterproof.record.store import RunKey, Store, StudyPaths, open_store
from counterproof.record.verify import verify_plan
from counterproof.run import judge
from counterproof.run.places import Place
from counterproof.run.register import StudyRequest, register
from counterproof.run.runner import StudyRunner

EXPERIMENT = "planted_delay"
DELAY = "engine.inject.step_delay_us"
RESULT = Path(__file__).resolve().parent / "results" / "calibration.json"
EACH = 12
SEED = 20261129
PILOT = ("study.blocks=1", "study.reserve_blocks=0", "study.equivalence_requests=0", "study.probes=false")
FACTS = ("python.version", "os.kernel", "cpu.model", "cpu.logical", "library.torch", "library.numpy")


class Bar:
    """A progress of a study, shown on one bar for all of them; without a terminal one line a study."""

    def __init__(self, total: int) -> None:
        self.name = ""
        self._began = time.monotonic()
        self._done = self._measured = 0
        self._total = total
        self._waited: set[str] = set()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f}/{task.total:.0f} studies  {task.fields[note]}"),
            console=Console(stderr=True),
            refresh_per_second=1,  # drawing takes time from what is measured
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bars.add_task("calibration", total=total, note="")

    def __enter__(self) -> Bar:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def study_ended(self, line: str, *, measured: bool) -> None:
        """One more is finished; `measured`: by this call, so that its time tells what the others will take."""
        self._done += 1
        self._measured += measured
        self._bars.update(self._task, completed=self._done)
        self._bars.console.print(f"[{self._done:>2}/{self._total}] {line}{self._left()}", markup=False)

    def run_started(self, key: RunKey, number: int, total: int) -> None:
        self._bars.update(self._task, note=f"{self.name} {key.name}, {number} of {total} runs{self._left()}")

    def requests_done(self, done: int, total: int) -> None:
        """A run takes a second or two: the bar does not show its requests."""

    def run_ended(self, key: RunKey, note: str) -> None:
        if not note.startswith("sealed"):
            self._bars.console.print(f"{self.name} {key.name}: {note}", markup=False)

    def waiting(self, what: str) -> None:
        if what not in self._waited:
            self._waited.add(what)
            self._bars.console.print(f"{self.name}: waiting for {what}", markup=False)

    def extended(self, missing: list[Place], reason: str) -> None:
        self._bars.console.print(
            f"{self.name}: {len(missing)} reserve runs are called up: {reason}", markup=False
        )

    def _left(self) -> str:
        if not self._measured or self._done == self._total:
            return ""
        seconds = (time.monotonic() - self._began) / self._measured * (self._total - self._done)
        return f", about {seconds / 60:.0f} min left"


def studies(each: int, part: tuple[int, int] = (1, 1)) -> list[tuple[str, str, int]]:
    """`(name, kind, seed)` of every study of a part (K, N), in the order in which they are run: every N-th from the
    K-th on."""
    whole = [
        (f"{kind}-{number + 1:02d}", kind, SEED + len(KINDS) * number + place)
        for number in range(each)
        for place, kind in enumerate(KINDS)
    ]
    return whole[part[0] - 1 :: part[1]]


def part_of(text: str) -> tuple[int, int]:
    """`K/N` as (K, N). Raises InputError unless 1 <= K <= N."""
    found = re.fullmatch(r"([0-9]{1,3})/([0-9]{1,3})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--part must be K/N with K from 1 to N, such as 1/2, not {text!r}")
    return int(found[1]), int(found[2])


def calibrate(store: Store, each: int, bar: Bar, part: tuple[int, int] = (1, 1)) -> list[dict[str, Any]]:
    """Run what is missing of a part (see `studies`). Returns the row of every study of it. Raises what a study raises."""
    rows: list[dict[str, Any]] = []
    step_us: float | None = None
    for name, kind, seed in studies(each, part):
        bar.name = name
        paths = StudyPaths(store.studies / name)
        finished = is_finished(paths)
        if not finished:
            if not paths.folder.exists():
                step_us = step_us or pilot_step_us(store, bar)
                share = KINDS[kind]
                delay = AA_US if share is None else max(AA_US, round(share * step_us))
                tokens = (f"study.seed={seed}",)
                register(store, StudyRequest(EXPERIMENT, tokens, (f"{DELAY}={delay}",), name))
            carry_out(paths, bar)
        plan, _, _ = verify_plan(paths)
        row = row_of(kind, plan, canonical.read_json(paths.comparison), canonical.read_json(paths.decision))
        rows.append({**row, "seconds": seconds_of(paths)})
        step_us = row["step_us"] or step_us
        bar.study_ended(f"{name}: {row['outcome']}, {rows[-1]['seconds']:.0f} s", measured=not finished)
    return rows


def carry_out(paths: StudyPaths, bar: Bar) -> None:
    """What `counterproof run` does with a registered study: run, stop early or extend by the rule, judge."""
    with StudyRunner.lock(paths):
        runner = StudyRunner(paths, bar)
        runner.recover()
        runner.run_missing(lambda _block: judge.must_stop(paths), lambda: judge.why_extend(paths))
        judge.judge(paths)


def is_finished(paths: StudyPaths) -> bool:
    """Whether the last thing that its journal tells is its report, and the report's evidence is there."""
    if not (paths.comparison.is_file() and paths.decision.is_file()):
        return False
    return Journal(paths.journal).events()[-1]["kind"] == "reported"


def pilot_step_us(store: Store, bar: Bar) -> float:
    """Microseconds of a step, by the baseline of a short exploratory study: of a request that runs alone, a token
    is a step. Raises InputError when it was not measured."""
    name = f"pilot-{time.time_ns()}"  # parts that run side by side must not meet
    paths = register(store, StudyRequest(EXPERIMENT, PILOT, (), name, exploratory=True))
    bar.name = name
    carry_out(paths, bar)
    arms = canonical.read_json(paths.comparison)["metrics"]["tpot_ms"]["arms"]
    found = [value for arm in ("baseline", "again") for value in arms[arm]["per_block"] if value is not None]
    if not found:
        raise InputError(f"{name} measured no time of a step", details=[f"look at {paths.folder}"])
    return float(1000 * statistics.mean(found))


def seconds_of(paths: StudyPaths) -> float:
    """What its sealed runs took."""
    return sum(float(event.get("seconds", 0.0)) for event in Journal(paths.journal).events())


def environment_of(store: Store, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the first study's plan says of machine and libraries; the harness refuses a run under others."""
    environment: dict[str, Any] = verify_plan(StudyPaths(store.studies / rows[0]["study"]))[0]["environment"]
    return environment


def place_of(fresh: bool, code: code_identity.CodeIdentity) -> Store:
    """The calibration's own store, beside the user's studies. Raises InputError for one of another commit."""
    store = Store(open_store().root / "calibration")
    if fresh:
        shutil.rmtree(store.root, ignore_errors=True)
    mark = store.root / "code.json"
    if mark.is_file() and canonical.read_json(mark) != code.as_dict():
        raise InputError(
            f"{store.root} holds studies of another commit, and one calibration is of one",
            details=["to begin again: make calibrate CALIBRATE=--fresh"],
        )
    store.create()
    atomic.write_json(mark, code.as_dict())
    return store


def main(argv: list[str] | None = None) -> int:
    """Run, check, print and keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", type=int, default=EACH, help=f"studies of each kind (default: {EACH})")
    parser.add_argument("--fresh", action="store_true", help="remove what is finished and begin again")
    parser.add_argument(
        "--part", default="1/1", metavar="K/N", help="only every N-th study from the K-th on; no checks"
    )
    parser.add_argument("--result", type=Path, default=RESULT, metavar="FILE", help=f"default: {RESULT.name}")
    args = parser.parse_args(argv)
    try:
        if args.each < 1:
            raise InputError(f"--each must be at least 1, not {args.each}")
        part = part_of(args.part)
        code = code_identity.identify()
        refuse_dirty(code.dirty_files)
        store = place_of(args.fresh, code)
        with Bar(len(studies(args.each, part))) as bar:
            rows = calibrate(store, args.each, bar, part)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except CounterproofError as error:
        print("\n  ".join([f"error: {error}", *error.details]), file=sys.stderr)
        return error.exit_code
    print(table(rows))
    if part[1] > 1:
        print("the checks come with the whole: run this without --part once every part is done")
        return 0
    found = checks(rows, args.each)
    result = {
        "finished_utc": now_utc(),
        "code": code.as_dict(),
        "versions": {name: environment_of(store, rows).get(name) for name in FACTS},
        "each": args.each,
        "passed": all(check["passed"] for check in found),
        "checks": found,
        "studies": rows,
    }
    args.result.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for check in found:
        listed = f": {', '.join(check['studies'])}" if check["studies"] else ""
        print(f"{'holds ' if check['passed'] else 'FAILED'}  {check['check']}{listed}")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
