"""`ladder`: what each of several changes gave, one on top of the other."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from counterproof.commands import console
from counterproof.errors import EXIT_OK, InputError
from counterproof.record import canonical
from counterproof.record.store import Store, open_store
from counterproof.record.verify import verify_study

if TYPE_CHECKING:
    from counterproof.measure.ladder import Rung

_EXAMPLES = """examples:
  counterproof ladder kv-1 prefix-1
  counterproof ladder kv-1 prefix-1 --alone kv-1 --alone prefix-alone
  counterproof ladder kv-1 prefix-1 --without top-without-kv --json

Each argument is a finished study; the baseline of one must be the candidate of the one before it.
"""


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command of this module."""
    parser = subparsers.add_parser(
        "ladder",
        help="attribute a gain over several studies: steps, leave-one-out, interaction",
        description="Attribute a gain over several studies: steps, leave-one-out, interaction.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("studies", nargs="+", metavar="study", help="studies from the bottom rung up")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="STUDY",
        help="the top against the top without one factor",
    )
    parser.add_argument(
        "--alone", action="append", default=[], metavar="STUDY", help="one factor alone on the bottom rung"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=_ladder)


def _ladder(args: argparse.Namespace) -> int:
    store = open_store()
    from counterproof.measure.ladder import climb  # slow to import

    found = climb(
        *([_rung(store, name) for name in names] for names in (args.studies, args.without, args.alone))
    )
    if args.json:
        print(json.dumps(found, indent=1, sort_keys=True))
        return EXIT_OK
    rows = [("step", one) for one in found["steps"]]
    rows += [("whole", found["total"]), *(("last, removed", one) for one in found["without"])]
    rows += [("alone", one) for one in found["alone"]]
    if found["interaction"] is not None:
        rows.append(("interaction", found["interaction"]))
    primary = found["primary"]
    print(f"gain in {primary['metric']} {primary['statistic']} (positive is better), 95 % intervals")
    table = [
        (kind, one["name"], one["study"], *(_percent(one[k]) for k in ("gain", "ci_low", "ci_high")))
        for kind, one in rows
    ]
    print(console.table(("", "change", "study", "gain", "from", "to"), table))
    print(found["reason"])
    return EXIT_OK


def _rung(store: Store, name: str) -> Rung:
    """A study whose records and whose comparison are what the journal says. Raises InputError, EvidenceError."""
    paths = store.study(name)
    verified = verify_study(paths.folder)
    if not paths.comparison.is_file():
        raise InputError(
            f"{name} was not compared yet", details=[f"to go on with it: counterproof resume {name}"]
        )
    from counterproof.measure.ladder import Rung  # slow to import

    return Rung(verified.plan, canonical.read_json(paths.comparison))


def _percent(gain: float) -> str:
    return f"{100 * gain:+.1f} %"
