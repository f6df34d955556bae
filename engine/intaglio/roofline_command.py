"""`intaglio roofline`: the memory and arithmetic roofs of this machine, measured with the engine's own libraries."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from intaglio import threads
from intaglio.config import ThreadsConfig, parse_overrides
from intaglio.errors import ConfigError

_EXAMPLES = """\
examples:
  intaglio roofline
  intaglio roofline threads.count=2 threads.wait_policy=active
  intaglio roofline device=cuda --json
"""


def register(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `roofline` to a command line; it sets `func(args, overrides) -> exit code`."""
    parser = commands.add_parser(
        "roofline",
        help="measure how fast this machine reads memory and multiplies matrices",
        description="Measure how fast this machine reads memory and multiplies matrices (about 3 s).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="device, threads.count, ...")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=_roofline)


def _roofline(args: argparse.Namespace, overrides: list[str]) -> int:
    config = parse_overrides(overrides)
    threads.apply(ThreadsConfig(config.threads.count, config.threads.wait_policy))
    from intaglio import roofline

    def tell(what: str) -> None:
        if sys.stderr.isatty():
            print(f"measuring {what} ...", file=sys.stderr)

    try:
        found = roofline.measure(config.device, tell)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device={config.device} cannot be measured: {error}; use device=cpu", field="device"
        ) from error
    if args.json:
        print(json.dumps(found.as_dict()))
        return 0
    print(f"{found.device}, {found.threads} threads")
    print(f"memory          {found.memory_bytes_s / 1e9:10.1f} GB/s")
    for name, rate in found.flops_s.items():
        print(f"products {name:6} {rate / 1e9:10.1f} GFLOP/s")
    return 0
