"""The command line `counterproof`. Expected errors end in one clear line and an exit code, never in a traceback."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

from counterproof import __version__
from counterproof.commands import console, plugins
from counterproof.errors import (
    EXIT_EXECUTION,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_SETUP,
    CounterproofError,
)
from intaglio.errors import ConfigError, IntaglioError

_EPILOG = """examples:
  counterproof doctor
  counterproof models fetch smollm2-135m
  counterproof run kv_cache
  counterproof list
  counterproof report kv_cache-20260102-030405 --open
"""
# Errors of the place that is written to, not of the program.
_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
# Which module of `commands` has which of them. Only the one that is asked for is imported: some are slow to.
_COMMANDS: dict[str, tuple[str, ...]] = {
    "study": ("run", "resume", "step"),
    "listing": ("list",),
    "inspect": ("show", "diff", "report"),
    "ladder": ("ladder",),
    "faults": ("faults",),
    "deployments": ("promote", "rollback", "deployments", "drill"),
    "serving": ("serve",),
    "index": ("index",),
    "doctor": ("doctor",),
}
_MODELS = "models"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (see counterproof.errors)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parse(arguments)
        previous = signal.signal(signal.SIGTERM, _terminate)
        try:
            code: int = args.func(args)
        finally:
            signal.signal(signal.SIGTERM, previous)
        sys.stdout.flush()
        return code
    except CounterproofError as error:
        console.show_error(error)
        return error.exit_code
    except IntaglioError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_INPUT if isinstance(error, ConfigError) else EXIT_SETUP
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left; leave without a complaint of the interpreter's.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_EXECUTION
    except OSError as error:
        if error.errno not in _PLACE:
            traceback.print_exc()
            return EXIT_EXECUTION
        print(f"error: {error}", file=sys.stderr)
        print("  free some room, or set COUNTERPROOF_STORE to a folder that can be written", file=sys.stderr)
        return EXIT_SETUP
    except Exception:
        # Not one of ours: a defect. Python's own exit code 1 would read as evidence against a candidate.
        traceback.print_exc()
        return EXIT_EXECUTION


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The whole command line, plug-ins included; for a command of our own, as much of it as that one needs."""
    own = command == _MODELS or any(command in names for names in _COMMANDS.values())
    parser = argparse.ArgumentParser(
        prog="counterproof",
        description="Turn 'this change made inference faster' into evidence that somebody else can try to break.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"counterproof {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for module, names in _COMMANDS.items():
        if not own or command in names:
            importlib.import_module(f"counterproof.commands.{module}").add_parsers(subparsers)
    if not own or command == _MODELS:
        from intaglio.models.commands import register as register_models

        register_models(subparsers)
    if not own:
        plugins.register(subparsers)
    return parser


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = build_parser(arguments[0] if arguments else None)
    args, rest = parser.parse_known_args(arguments)
    if rest:
        # Overrides may also follow options: run kv_cache --blocks 8 workload.requests=22
        if not hasattr(args, "overrides") or any(token.startswith("-") for token in rest):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        args.overrides = [*args.overrides, *rest]
    return args


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """A polite end request is an interruption: children are ended and the journal says so."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
