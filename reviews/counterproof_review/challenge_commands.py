"""`counterproof packet challenge`, and the searching part of `counterproof review challenge`."""

from __future__ import annotations

import argparse
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from counterproof.commands.console import note
from counterproof.errors import EXIT_AGAINST, EXIT_OK, InputError
from counterproof.record import canonical
from counterproof.record.store import open_store

MINUTES = 30.0
EPILOG = """examples:
  counterproof packet challenge claim.rep.zip --minutes 20
  counterproof packet challenge claim.rep.zip --dir search --minutes 60 --models /mnt/models
  counterproof packet challenge claim.rep.zip --dir search --minutes 60     (again: goes on where it was killed)

Both arms of an open packet run side by side on loads that are made here: prompts at the edges of blocks, shared prefixes,
many at once, bursts, mixed lengths, code, noise and Unicode. What looks bad is measured again in fresh processes with
fresh seeds, shrunk, and reported: report.json, report.md and report.html in the folder. Nothing in the packet is
executed, the network is off.

exit codes: 0 searched, whatever was found, 2, 3, 4 as always; with --gate 1 when something was confirmed
"""


def register(actions: argparse._SubParsersAction[Any]) -> None:
    """Add `challenge` to the actions of `packet`."""
    made: argparse.ArgumentParser = actions.add_parser(
        "challenge",
        help="look for loads that overturn an open packet's claim",
        description="Look for loads that overturn the claim of an open packet.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("file", type=Path)
    made.add_argument("--nonce", help="64 hex digits that set the cells and loads (default: random)")
    made.add_argument("--gate", action="store_true", help="exit code 1 when a counterexample is confirmed")
    add_options(made)
    made.set_defaults(func=challenge_packet)


def add_options(made: argparse.ArgumentParser) -> None:
    """What every search can be told."""
    made.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        metavar="N",
        help=f"how long to measure (default {MINUTES:g})",
    )
    made.add_argument("--cells", type=int, help="most cells to probe (default: as the packet declares)")
    made.add_argument("--confirm", type=int, help="most cells to measure afresh")
    made.add_argument("--confirm-blocks", type=int, help="blocks of each of them, at least 6")
    made.add_argument("--dir", type=Path, help="the folder of the search; one that was cut off goes on there")
    made.add_argument(
        "--models", type=Path, action="append", default=[], help="a folder to search for the model"
    )


def challenge_packet(args: argparse.Namespace) -> int:
    """Search outside a review."""
    from counterproof_review.challenge import claim, hunt
    from counterproof_review.challenge.journaled import HEADER
    from counterproof_review.packet.reader import Archive
    from counterproof_review.packet.replay import NONCE_BYTES, read_nonce
    from counterproof_review.packet.verify import Verification, verify

    report = Verification()
    with Archive.open(args.file) as archive:
        verify(archive, report)
    found = claim.of_packet(report)
    folder = args.dir or _new_folder(args.file)
    nonce = read_nonce(args.nonce) if args.nonce else secrets.token_bytes(NONCE_BYTES)
    seed = hunt.seed_of(report.root, nonce)
    if not args.nonce and (folder / HEADER).is_file():
        seed = int(canonical.read_json(folder / HEADER)["seed"])
    document = run(args, report, found, folder, seed)
    return EXIT_AGAINST if args.gate and document["flips"] else EXIT_OK


def run(args: argparse.Namespace, report: Any, found: Any, folder: Path, seed: int) -> dict[str, Any]:
    """Search with the options of a command line, show the report, and return it."""
    from counterproof_review.challenge import hunt, summary
    from counterproof_review.challenge.bar import Bar

    options = hunt.Options(folder, _minutes(args.minutes), seed, None, tuple(args.models))
    options = replace(options, budget=_budget(args, hunt.budget_of(report, options)))
    with Bar(sys.stderr, options.minutes) as bar:
        document = hunt.hunt(report, found, options, note, bar)
    print((folder / summary.MARKDOWN).read_text(encoding="utf-8"))
    note(f"report: {folder / summary.PAGE}")
    return document


def _minutes(minutes: float) -> float:
    if not 0.0 < minutes <= 60 * 24 * 7:
        raise InputError(f"--minutes must be positive and at most a week, not {minutes:g}")
    return minutes


def _budget(args: argparse.Namespace, declared: Any) -> Any:
    limits = (("cells", args.cells, 1, 10_000), ("confirm", args.confirm, 1, 100))
    for name, value, low, high in (*limits, ("confirm_blocks", args.confirm_blocks, 6, 64)):
        if value is not None and not low <= value <= high:
            raise InputError(f"--{name.replace('_', '-')} must be between {low} and {high}, not {value}")
        if value is not None:
            declared = replace(declared, **{name: value})
    return declared


def _new_folder(file: Path) -> Path:
    base = open_store().root / "challenges"
    stem = file.name.split(".")[0] or "packet"
    number = 1
    while (base / f"{stem}-{number}").exists():
        number += 1
    return base / f"{stem}-{number}"
