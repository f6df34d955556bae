"""`show`, `diff` and `report`: commands that read records and measure nothing."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import Any

import yaml

from counterproof.commands import console, outcome
from counterproof.decide.headline import headline
from counterproof.errors import EXIT_AGAINST, EXIT_OK, InputError, did_you_mean
from counterproof.record import canonical
from counterproof.record.difference import Difference, differences
from counterproof.record.store import RunKey, StudyPaths, open_store
from counterproof.record.verify import SealedRun, VerifiedStudy, verify_study
from counterproof.run import assemble, judge, places


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the commands of this module."""
    show = subparsers.add_parser(
        "show",
        help="one study, or one run of it",
        epilog="examples:\n  counterproof show my-study\n  counterproof show my-study/00-baseline-1\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    show.add_argument("what", metavar="STUDY[/RUN]")
    show.set_defaults(func=_show)
    diff = subparsers.add_parser(
        "diff",
        help="what differs between two arms or runs: configuration, effective configuration, environment",
        epilog=(
            "examples:\n  counterproof diff my-study                      (baseline against candidate)\n"
            "  counterproof diff my-study/baseline other/candidate\n"
            "  counterproof diff my-study/00-baseline-1 my-study/01-baseline-1\n\n"
            "exit codes: 0 exactly the declared factor differs or nothing does, 1 more differs\n"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    diff.add_argument("first", metavar="STUDY[/ARM or RUN]")
    diff.add_argument("second", nargs="?", metavar="STUDY/ARM or RUN")
    diff.set_defaults(func=_diff)
    report = subparsers.add_parser(
        "report", help="compare and decide anew from the records, and write the report"
    )
    report.add_argument("study")
    report.add_argument("--open", action="store_true", help="open it in a browser")
    report.set_defaults(func=_report)


def _show(args: argparse.Namespace) -> int:
    name, _, run = args.what.partition("/")
    paths = open_store().study(name)
    study = verify_study(paths.folder)
    if run:
        _show_run(study, run)
        return EXIT_OK
    plan = study.plan
    _show_outcome(paths, plan)
    print(f"{plan['study']}: {plan['question']}")
    for change in plan["diff"]:
        print(f"  varies {Difference(change['path'], change['baseline'], change['candidate'])}")
    print(f"  plan {study.plan_sha256}\n  journal head {study.journal_head}, {len(study.journal)} events")
    rows = [
        (
            run.folder.name,
            run.manifest["env_id"][:12],
            f"{run.manifest['startup_ms']:.0f} ms",
            run.manifest_sha256,
        )
        for run in study.runs
    ]
    print(console.table(("sealed run", "environment", "start-up", "manifest"), rows))
    for event in study.journal:
        if event["kind"] in (
            "run_lost",
            "run_failed",
            "run_refused",
            "torn_tail",
            "stopped_early",
            "extended",
            "view_failed",
            "node_refused",
        ):
            print(
                f"  {event['time_utc']} {event['kind']} {event.get('run', '')} {event.get('reason', '')}".rstrip()
            )
    sealed = places.done(study.journal)
    missing = [place for place in places.places(plan, study.journal) if place not in sealed]
    if missing:
        print(f"{len(missing)} runs are missing; to go on: counterproof resume {paths.name}")
    return EXIT_OK


def _show_outcome(paths: StudyPaths, plan: dict[str, Any]) -> None:
    """What was found, first: the rest is for whoever wants to check it."""
    if not (paths.comparison.is_file() and paths.decision.is_file()):
        return
    found = judge.Judgement(canonical.read_json(paths.comparison), canonical.read_json(paths.decision))
    words = headline(plan, found.comparison, found.decision)
    print(f"{words.finding}\n{words.advice}\n\n{outcome.summary(paths, found, None)}\n")


def _show_run(study: VerifiedStudy, name: str) -> None:
    run = _find_run(study, name)
    manifest = {key: value for key, value in run.manifest.items() if key != "files"}
    print(canonical.pretty(manifest).decode(), end="")
    rows = [(name, entry["size"], entry["sha256"]) for name, entry in sorted(run.manifest["files"].items())]
    print(console.table(("file", "bytes", "sha256"), rows))


def _diff(args: argparse.Namespace) -> int:
    first, second = args.first, args.second
    if second is None:
        if "/" in first:
            raise InputError("one thing alone cannot differ", details=["give a second one, or only a study"])
        first, second = f"{first}/baseline", f"{first}/candidate"
    left, right = _read_side(first), _read_side(second)
    declared = left["declared"] | right["declared"]
    undeclared = 0
    for title in ("config", "effective", "environment"):
        if left[title] is None or right[title] is None:
            print(f"{title}: not recorded yet")
            continue
        found = differences(left[title], right[title])
        print(f"{title}: {len(found)} {'difference' if len(found) == 1 else 'differences'}")
        for difference in found:
            expected = difference.path in declared
            undeclared += not expected
            print(f"  {difference}{'   (declared)' if expected else ''}")
    return EXIT_AGAINST if undeclared else EXIT_OK


def _read_side(text: str) -> dict[str, Any]:
    name, _, rest = text.partition("/")
    study = verify_study(open_store().study(name).folder)
    plan = study.plan
    arm = rest or "baseline"
    run: SealedRun | None
    if arm not in plan["arms"] and not RunKey.is_name(arm):
        raise InputError(
            f"'{arm}' is neither an arm nor a run of {study.paths.name}",
            details=[*did_you_mean(arm, plan["arms"]), f"arms: {', '.join(plan['arms'])}"],
        )
    if arm in plan["arms"]:
        run = next((run for run in study.runs if run.key.arm == arm and run.key.block is not None), None)
    else:
        run = _find_run(study, rest)
        arm = run.key.arm
    factor = plan["factor"] or {"path": "", "moves": {"effective": [], "environment": []}}
    moves = factor["moves"]
    return {
        "config": assemble.arm_of(plan, arm)["config"],
        "effective": None if run is None else _read_yaml(run.folder / "config" / "effective.yaml"),
        "environment": None if run is None else canonical.read_json(run.folder / "environment.json")["id"],
        "declared": {
            *(change["path"] for change in [*plan["diff"], *plan["fan_out"]]),
            *moves["effective"],
            *moves["environment"],
        },
    }


def _report(args: argparse.Namespace) -> int:
    paths = open_store().study(args.study)
    found = judge.judge(paths)
    path = paths.folder / "report.html"
    print(path)
    print(f"{found.decision['decision']}: {found.decision['because']}")
    if args.open:
        webbrowser.open(path.as_uri())
    return EXIT_OK


def _find_run(study: VerifiedStudy, name: str) -> SealedRun:
    RunKey.parse(name)
    for run in study.runs:
        if run.folder.name == name:
            return run
    known = [run.folder.name for run in study.runs]
    raise InputError(
        f"{study.paths.name} has no sealed run '{name}'",
        details=[*did_you_mean(name, known), f"sealed runs: {', '.join(known) or 'none'}"],
    )


def _read_yaml(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content
