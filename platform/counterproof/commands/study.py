"""`run`, `resume` and `step`: commands that measure."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from counterproof.commands import console, outcome
from counterproof.errors import EXIT_OK, ExecutionError, InputError
from counterproof.record.journal import Journal
from counterproof.record.store import Store, StudyPaths, open_store
from counterproof.record.verify import verify_plan
from counterproof.run import judge, places
from counterproof.run.progress import show_progress
from counterproof.run.runner import StudyRunner
from counterproof.run.shared_progress import SharedProgress
from counterproof.run.site import Site

if TYPE_CHECKING:
    from counterproof.run.faults.fault import Fault, Outcome

_RUN_EXAMPLES = """examples:
  counterproof run kv_cache
  counterproof run kv_cache workload.requests=22 --blocks 8
  counterproof run kv_cache engine=tiny --exploratory --blocks 2
  counterproof run kv_cache --candidate engine.kv_cache.enabled=true --study my-study
  counterproof run kv_cache --faults
  counterproof run calibration

exit codes:
  0 valid evidence, whatever it says   2 bad input or refused   3 set-up   4 execution   5 evidence invalid
  130 interrupted; with --gate also 1 for evidence against and 5 for HOLD or inconclusive
"""


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the commands of this module."""
    run = _add(
        subparsers, "run", _run, "record a baseline, change one thing, compare and decide", _RUN_EXAMPLES
    )
    run.add_argument("experiment", help="an experiment's name, e.g. kv_cache")
    run.add_argument(
        "overrides", nargs="*", metavar="path=value", help="configuration overrides for all arms"
    )
    run.add_argument(
        "--candidate",
        action="append",
        default=[],
        metavar="path=value",
        help="what makes the candidate, instead of the experiment's own; may be given several times",
    )
    run.add_argument("--study", metavar="NAME", help="the study's name (default: experiment and time)")
    run.add_argument(
        "--exploratory",
        action="store_true",
        help="allow uncommitted changes and fewer blocks; such a study can never claim anything",
    )
    run.add_argument("--blocks", type=int, metavar="N", help="the same as study.blocks=N")
    run.add_argument(
        "--faults",
        action="store_true",
        help="the same as study.faults=true: afterwards let faults strike small copies of the study",
    )
    _add_ending(run)
    resume = _add(
        subparsers,
        "resume",
        _resume,
        "go on with a study at its first missing run",
        "examples:\n  counterproof resume kv_cache-20260102-030405\n",
    )
    resume.add_argument("study")
    _add_ending(resume)
    step = _add(
        subparsers,
        "step",
        _step,
        "do exactly one run of a study",
        "examples:\n  counterproof step my-study --block 0 --arm baseline\n"
        "  counterproof step my-study --block eq --arm candidate\n",
    )
    step.add_argument("study")
    step.add_argument("--block", required=True, help="the block's number, eq or probe")
    step.add_argument("--arm", required=True, help="baseline, candidate, again or slowed")


def finish(store: Store, paths: StudyPaths, *, gate: bool, packet: bool, executor: str = "local") -> int:
    """Run what is missing, judge, refresh the views, print the outcome. Returns the exit code."""
    plan, _, _ = verify_plan(paths)
    with StudyRunner.lock(paths), _sites(executor, plan, paths) as sites:
        events = Journal(paths.journal).events()
        sealed = places.done(events)
        missing = [place for place in places.places(plan, events) if place not in sealed]
        with show_progress(plan, missing, events) as progress:
            runner = StudyRunner(paths, SharedProgress(progress) if len(sites) > 1 else progress, sites)
            for lost in runner.recover():
                console.note(f"{lost} was cut off; it is kept, journalled as lost, and not counted")
            try:
                runner.run_missing(lambda _block: judge.must_stop(paths), lambda: judge.why_extend(paths))
            except KeyboardInterrupt:
                Journal(paths.journal).append("interrupted")
                console.note(f"interrupted; to go on: counterproof resume {paths.name}")
                raise
            except ExecutionError as error:
                # What was sealed until then may already show a crash loop or harm; say so before failing.
                judge.judge(paths)
                raise ExecutionError(
                    str(error),
                    details=[*error.details, f"report so far: {paths.folder / 'report.html'}"],
                ) from error
        _faults(store, paths)
        found = judge.judge(paths)
    outcome.refresh_views(store, paths)
    shown = outcome.make_packet(paths) if packet else None
    print(outcome.summary(paths, found, shown))
    return outcome.exit_code(found, gate=gate, packet=shown)


def _faults(store: Store, paths: StudyPaths) -> None:
    """The phase of faults, where the plan asks for it; a study that was cut off in it goes on with the next fault."""
    from counterproof.run.faults import phase

    def tell(number: int, total: int, fault: Fault, outcome: Outcome | None) -> None:
        said = "..." if outcome is None else f"{outcome.outcome}; {outcome.detail}"
        console.note(f"fault {number}/{total} {fault.name}: {said}")

    try:
        phase.run(store, paths, tell)
    except KeyboardInterrupt:
        Journal(paths.journal).append("interrupted")
        console.note(f"interrupted; to go on with the next fault: counterproof resume {paths.name}")
        raise


@contextlib.contextmanager
def _sites(executor: str, plan: dict[str, Any], paths: StudyPaths) -> Iterator[Sequence[Site]]:
    """Where the study's runs are measured; () stands for this machine."""
    if executor == "local":
        yield ()
        return
    from counterproof.plan.compose import engine_of  # slow to import
    from counterproof.run.ray_site import ray_sites

    engine = engine_of(plan["arms"]["baseline"]["config"])
    with ray_sites(plan, Journal(paths.journal), engine) as sites:
        console.note(
            f"blocks are measured on {len(sites)} machine{'s' if len(sites) > 1 else ''} through Ray"
        )
        yield sites


def _run(args: argparse.Namespace) -> int:
    from counterproof.run.register import StudyRequest, register  # slow to import

    store = open_store()
    overrides = list(args.overrides)
    if args.blocks is not None:
        overrides.append(f"study.blocks={args.blocks}")
    if args.faults:
        overrides.append("study.faults=true")
    request = StudyRequest(
        args.experiment, tuple(overrides), tuple(args.candidate), args.study, args.exploratory
    )
    paths = register(store, request)
    console.note(f"study {paths.name}")
    if args.exploratory:
        console.note("exploratory: this study can never claim anything")
    return finish(store, paths, gate=args.gate, packet=args.packet, executor=args.executor)


def _resume(args: argparse.Namespace) -> int:
    store = open_store()
    paths = store.study(args.study)
    journal = Journal(paths.journal)
    with StudyRunner.lock(paths):
        journal.append("resumed")
    return finish(store, paths, gate=args.gate, packet=args.packet, executor=args.executor)


def _step(args: argparse.Namespace) -> int:
    paths = open_store().study(args.study)
    if args.block not in ("eq", "probe") and not args.block.isdigit():
        raise InputError(f"--block must be a number, eq or probe, not '{args.block}'")
    number = int(args.block) if args.block.isdigit() else None
    place = places.Place(number, args.arm, args.block == "probe")
    plan, _, _ = verify_plan(paths)
    with StudyRunner.lock(paths), show_progress(plan, [place]) as progress:
        runner = StudyRunner(paths, progress)
        runner.recover()
        runner.run_place(place)
    return EXIT_OK


def _add(
    subparsers: argparse._SubParsersAction[Any], name: str, func: Any, text: str, epilog: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=text,
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(func=func)
    return parser


def _add_ending(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gate", action="store_true", help="exit 1 for evidence against, 5 for HOLD or inconclusive"
    )
    parser.add_argument(
        "--packet", action="store_true", help="afterwards build, verify and replay a replication packet"
    )
    parser.add_argument(
        "--executor",
        choices=("local", "ray"),
        default="local",
        help="ray: whole blocks side by side on the nodes of the Ray cluster at $RAY_ADDRESS (default: local)",
    )
