"""`counterproof packet schema|export-crate`: views of packets and reviews for other programs than this one."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

from counterproof.commands.console import note, table
from counterproof.errors import EXIT_OK, InputError

_SCHEMA = """examples:
  counterproof packet schema                       every schema, and what it describes
  counterproof packet schema prereg                print one (draft 2020-12)
  counterproof packet schema --out schemas         write all of them into a folder

A schema says what form a file has. Whether its content is true says `counterproof packet verify` alone.
"""
_CRATE = """examples:
  counterproof packet export-crate claim.rep.zip crate          a packet, each member as a file
  counterproof packet export-crate review crate                 the folder of a review
  counterproof packet export-crate store/studies/my-study crate

The folder gets the files and ro-crate-metadata.json (RO-Crate 1.2). It is a view: hand on the packet itself where
somebody is to verify or replay it. A packet's results and arm files lie open in its crate, as far as they are not sealed.
"""


def register(actions: argparse._SubParsersAction[Any], parser: Any) -> None:
    """Add both to `counterproof packet`. `parser(subparsers, name, summary, epilog)` makes a command's parser."""
    schema = parser(actions, "schema", "list or print the JSON Schemas of packets and reviews", _SCHEMA)
    schema.add_argument("name", nargs="?", help="a schema's name")
    schema.add_argument("--out", type=Path, metavar="DIR", help="write all schemas into this folder")
    schema.set_defaults(func=_schema)
    crate = parser(actions, "export-crate", "describe a packet, review or study as an RO-Crate", _CRATE)
    crate.add_argument("source", type=Path, help="a packet, or the folder of a review or of a study")
    crate.add_argument("dir", type=Path, help="where to write it; empty or not there")
    crate.add_argument(
        "--date", help="day of publication, YYYY-MM-DD (default: the review's last day, or today)"
    )
    crate.add_argument("--license", metavar="URL", help="the licence of the files (default: none is stated)")
    crate.set_defaults(func=_crate)


def _schema(args: argparse.Namespace) -> int:
    from counterproof_review.schema import catalogue

    if args.out is not None:
        if args.name:
            raise InputError("give either the name of a schema or --out DIR, not both")
        args.out.mkdir(parents=True, exist_ok=True)
        for name in catalogue.names():
            (args.out / (name + catalogue.SUFFIX)).write_text(catalogue.text(name), encoding="utf-8")
        note(f"wrote {len(catalogue.names())} schemas into {args.out}")
    elif args.name:
        print(catalogue.text(args.name), end="")
    else:
        print(
            table(("schema", "describes"), [(name, catalogue.describes(name)) for name in catalogue.names()])
        )
    return EXIT_OK


def _crate(args: argparse.Namespace) -> int:
    from counterproof_review.crate import graph, sources

    date = args.date or datetime.datetime.now(datetime.UTC).date().isoformat()
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        raise InputError(f"--date must be a day as YYYY-MM-DD, not '{date}'") from None
    source = sources.read(args.source)
    path = graph.write(source, args.dir, date, args.license)
    print(path)
    note(f"{source.kind} with {len(source.parts)} files; verdict {source.verdict}")
    if source.kind != sources.REVIEW:
        note(
            "the crate shows arms and, where they are not sealed, results: whoever reads them is not blind any more"
        )
    return EXIT_OK
