"""`index rebuild` and `index tokens`: the views, made from the study folders, and what they hold of a study."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from counterproof.commands import console
from counterproof.errors import EXIT_INVALID, EXIT_OK, InputError
from counterproof.record.store import open_store

if TYPE_CHECKING:
    from counterproof.record.duckdb_view import TokenGaps


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the commands of this module."""
    index = subparsers.add_parser("index", help="the DuckDB and MLflow views over the records")
    commands = index.add_subparsers(title="commands", required=True, metavar="COMMAND")
    rebuild = commands.add_parser(
        "rebuild",
        help="make DuckDB anew from the study folders and bring MLflow up to date; may be interrupted and repeated",
    )
    rebuild.add_argument(
        "--anew", action="store_true", help="throw the store's own MLflow database away first (a damaged one)"
    )
    rebuild.set_defaults(func=_rebuild)
    tokens = commands.add_parser(
        "tokens", help="time between tokens in every timed run of a study, from DuckDB"
    )
    tokens.add_argument("study")
    tokens.set_defaults(func=_tokens)


def _rebuild(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from counterproof.record import views  # slow to import

    store = open_store()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("studies"))
    with Progress(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty()) as progress:
        tasks = {name: progress.add_task(name, total=None) for name in ("DuckDB", "MLflow")}
        result = views.rebuild(
            store,
            anew=args.anew,
            progress=lambda view, done, total: progress.update(tasks[view], completed=done, total=total),
        )
    print(f"{len(result.studies)} studies indexed in {store.index}")
    print(f"MLflow: {result.mlflow}")
    for name, reason in result.refused:
        console.note(f"error: {name} is refused: {reason}")
    return EXIT_INVALID if result.refused else EXIT_OK


def _tokens(args: argparse.Namespace) -> int:
    from counterproof.record import duckdb_view  # slow to import

    store = open_store()
    store.study(args.study)
    found = duckdb_view.token_gaps(store.index, args.study) if store.index.is_file() else []
    if not found:
        raise InputError(
            f"the index holds no run of {args.study}", details=["to make it anew: counterproof index rebuild"]
        )
    header = ("run", "tokens", "gaps", "mean ms", "p50 ms", "p95 ms", "p99 ms")
    print(console.table(header, [_cells(gaps) for gaps in found]))
    return EXIT_OK


def _cells(gaps: TokenGaps) -> tuple[str, ...]:
    times = (gaps.mean, gaps.p50, gaps.p95, gaps.p99)
    texts = ("not measured" if value is None else f"{value:.3f}" for value in times)
    return (gaps.run, str(gaps.tokens), str(gaps.gaps), *texts)
