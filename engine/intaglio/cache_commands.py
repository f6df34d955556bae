"""`intaglio simulate-cache`: what a prefix cache of a given size would hit on a recorded trace."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from intaglio.errors import ConfigError
from intaglio.state.cache_replay import ReplayResult, read_trace, replay

_SIMULATE_EXAMPLES = """\
The trace is one JSON object a line with `hash_ids`, as published for Mooncake. No model is loaded: the engine's
own block pool and prefix cache serve the requests in order.

examples:
  intaglio simulate-cache conversation_trace.jsonl --blocks 10000
  intaglio simulate-cache conversation_trace.jsonl --blocks all --rows 2000 --json
"""


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to a command line; it sets `func(args, overrides) -> exit code`."""
    parser = commands.add_parser(
        "simulate-cache",
        help="replay a trace through the prefix cache, without a model",
        description="Replay a trace through the engine's prefix cache, without a model.",
        epilog=_SIMULATE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("trace", type=Path, metavar="TRACE", help="a trace in Mooncake's format (JSON lines)")
    add("--blocks", type=_capacity, required=True, metavar="N", help="blocks that fit, or 'all'")
    add("--rows", type=_count, metavar="N", help="only the first N requests")
    add("--json", action="store_true", help="print one JSON object instead of lines")
    parser.set_defaults(func=_simulate, overrides=[])


def _simulate(args: argparse.Namespace, overrides: list[str]) -> int:
    if overrides:
        raise ConfigError(f"simulate-cache runs no engine: leave {overrides[0]} out", field=overrides[0])
    result = replay(read_trace(args.trace, args.rows), args.blocks)
    print(json.dumps(result.to_dict()) if args.json else _lines(result))
    return 0


def _lines(result: ReplayResult) -> str:
    rows = (
        ("blocks", f"{result.blocks:,}"),
        ("requests", f"{result.requests:,}"),
        ("references", f"{result.references:,} ({result.unique:,} different)"),
        ("hits", f"{result.hits:,}"),
        ("hit_ratio", f"{result.hit_ratio:.4f}"),
        ("mean_request_ratio", f"{result.mean_request_ratio:.4f}"),
        ("evictions", f"{result.evictions:,}"),
    )
    return "\n".join(f"{name:<20}{value}" for name, value in rows)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("give a whole number from 1")
    return value


def _capacity(text: str) -> int | None:
    return None if text == "all" else _count(text)
