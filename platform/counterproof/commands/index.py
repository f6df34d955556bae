"""`index rebuild`: the views, made anew from the study folders alone."""

from __future__ import annotations

import argparse
from typing import Any

from counterproof.commands import console
from counterproof.errors import EXIT_INVALID, EXIT_OK
from counterproof.record import views
from counterproof.record.store import open_store


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the commands of this module."""
    index = subparsers.add_parser("index", help="the DuckDB and MLflow views over the records")
    commands = index.add_subparsers(title="commands", required=True, metavar="COMMAND")
    rebuild = commands.add_parser("rebuild", help="make both views anew from the study folders alone")
    rebuild.set_defaults(func=_rebuild)


def _rebuild(_args: argparse.Namespace) -> int:
    store = open_store()
    result = views.rebuild(store)
    print(f"{len(result.studies)} studies indexed in {store.index}")
    print(f"MLflow: {result.mlflow}")
    for name, reason in result.refused:
        console.note(f"error: {name} is refused: {reason}")
    return EXIT_INVALID if result.refused else EXIT_OK
