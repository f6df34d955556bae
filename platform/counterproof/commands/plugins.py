"""Commands that other packages add through the entry-point group `counterproof.commands`."""

from __future__ import annotations

import argparse
import importlib.metadata
from typing import Any

from counterproof.commands import console
from counterproof.errors import EXIT_SETUP, CounterproofError

GROUP = "counterproof.commands"


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add every plug-in's commands; one that cannot be loaded is told and left out."""
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name):
        try:
            point.load()(subparsers)
        except Exception as error:
            # Whatever is wrong with an extra command must not take the harness down.
            console.note(f"warning: the command '{point.name}' is not available: {error!r}")


def call(arguments: list[str]) -> int:
    """Run one plug-in command in this process, e.g. ["packet", "verify", "x.rep.zip"]. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="counterproof", exit_on_error=False)
    register(parser.add_subparsers(dest="command"))
    try:
        args = parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        console.note(f"error: {error}")
        return EXIT_SETUP
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else EXIT_SETUP
    try:
        code: int = args.func(args)
    except CounterproofError as error:
        console.show_error(error)
        return error.exit_code
    return code
