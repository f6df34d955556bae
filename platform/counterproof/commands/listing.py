"""`list`: one line a study, also where thousands lie in the store."""

from __future__ import annotations

import argparse
from typing import Any

from counterproof.commands import console
from counterproof.errors import EXIT_OK, CounterproofError
from counterproof.record import canonical, summaries
from counterproof.record.store import Store, StudyPaths, open_store
from counterproof.record.verify import check_outcome, verify_plan
from counterproof.run import places

# To be changed with what a line says.
VERSION = "1"
# So many that reading them all takes a noticeable time.
MANY = 200


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command of this module."""
    listing = subparsers.add_parser("list", help="all studies, with progress and decision")
    listing.set_defaults(func=_list)


def rows(store: Store) -> tuple[list[tuple[str, ...]], int]:
    """Every study's line, and how many were made from its files instead of being kept from an earlier call."""
    return summaries.rows(store, _row, version=VERSION, tell=_tell)


def keep(paths: StudyPaths) -> None:
    """Keep the study's line beside it, for the next listing."""
    summaries.keep(paths, _row, version=VERSION)


def _tell(missing: int) -> None:
    if missing > MANY:
        console.note(f"looking at {missing} studies for the first time ...")


def _list(_args: argparse.Namespace) -> int:
    found, _ = rows(open_store())
    if not found:
        print("no study was recorded yet; start with: counterproof run kv_cache")
        return EXIT_OK
    print(console.table(("study", "experiment", "runs", "evidence", "decision", "started"), found))
    return EXIT_OK


def _row(paths: StudyPaths) -> tuple[tuple[str, ...], bool]:
    """The line, and whether it may be kept: a refusal is looked into anew each time."""
    try:
        plan, _, content = verify_plan(paths)
        events = content.events
        check_outcome(paths, events)
        total, done = len(places.places(plan, events)), len(places.done(events))
        valid, decision = "", ""
        if paths.decision.is_file() and paths.comparison.is_file():
            valid = "valid" if canonical.read_json(paths.comparison)["valid"] else "invalid"
            decision = canonical.read_json(paths.decision)["decision"]
    except CounterproofError as error:
        return (paths.name, "", "", f"REFUSED: {error}", "", ""), False
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"REFUSED: its files do not have the expected form: {error!r}"
        return (paths.name, "", "", reason, "", ""), False
    kind = f"{plan['experiment']}{' (exploratory)' if plan['exploratory'] else ''}"
    return (paths.name, kind, f"{done}/{total}", valid, decision, plan["created_utc"][:16]), True
