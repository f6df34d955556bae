"""`faults`: let things break on purpose, and record what was noticed, lost and brought back."""

from __future__ import annotations

import argparse
from typing import Any

from counterproof.commands import console
from counterproof.errors import EXIT_AGAINST, EXIT_OK
from counterproof.record.store import Store, StudyPaths, open_store
from counterproof.record.verify import verify_plan

_EXAMPLES = """examples:
  counterproof faults kv_cache engine=tiny
  counterproof faults kv_cache-20260102-030405 --fault kill_run --fault full_disk
  counterproof faults --list

exit codes:
  0 everything recovered, ended honestly or does not apply   1 something did not   2 bad input   3 set-up
"""


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command of this module."""
    text = "let faults strike small copies of a study and record how they are survived"
    parser = subparsers.add_parser(
        "faults",
        help=text,
        description=text,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", nargs="?", help="a study, or an experiment of which one is made")
    parser.add_argument("overrides", nargs="*", metavar="path=value", help="overrides for all arms")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME", help="only this one; repeatable"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which faults strike")
    parser.add_argument("--list", action="store_true", help="say which faults there are")
    parser.set_defaults(func=_faults)


def _faults(args: argparse.Namespace) -> int:
    from counterproof.run.faults import registry, suite
    from counterproof.run.faults.bench import Bench
    from counterproof.run.faults.fault import NOT_RECOVERED

    if args.list or args.target is None:
        for fault in registry.all_faults():
            print(f"{fault.name.ljust(20)} {fault.what}")
        return EXIT_OK
    chosen, store = registry.choose(args.fault), open_store()
    paths, experiment, overrides = _target(store, args.target, args.overrides)
    scratch, remove = suite.bench_store(store)
    try:
        bench = Bench(scratch, experiment, overrides, seed=args.seed)
        rows = suite.run_faults(
            chosen, bench, lambda fault, found: console.note(f"{fault.name}: {found.outcome}; {found.detail}")
        )
    finally:
        remove()
    suite.record(paths, rows)
    _judge(paths)
    print(f"recorded in {paths.failures}")
    return EXIT_AGAINST if any(row["outcome"] == NOT_RECOVERED for row in rows) else EXIT_OK


def _target(store: Store, name: str, overrides: list[str]) -> tuple[StudyPaths, str, list[str]]:
    """The study that the results are recorded in, its experiment, and the overrides of the small copies."""
    from counterproof.run.faults import phase
    from counterproof.run.faults.bench import SMALL, Watch
    from counterproof.run.register import StudyRequest, default_name, register
    from counterproof.run.runner import StudyRunner

    if any(folder.name == name for folder in store.study_folders()):
        paths = store.study(name)
        plan = verify_plan(paths)[0]
        return paths, plan["experiment"], [*phase.overrides_of(plan), *overrides]
    keys = {token.partition("=")[0] for token in overrides}
    small = [token for token in SMALL if token.partition("=")[0] not in keys]
    request = StudyRequest(name, (*overrides, *small), (), default_name(f"faults-{name}"), exploratory=True)
    paths = register(store, request)
    console.note(f"study {paths.name}: an undisturbed block first")
    with StudyRunner.lock(paths):
        StudyRunner(paths, Watch()).run_missing()
    return paths, name, overrides


def _judge(paths: StudyPaths) -> None:
    """The report shows the failures beside everything else."""
    from counterproof.run import judge

    judge.judge(paths)
