"""The command `intaglio serve`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intaglio.config import parse_overrides
from intaglio.errors import ConfigError

EXIT_OK = 0
EXIT_EXECUTION = 4

_EPILOG = """\
examples:
  intaglio serve
  intaglio serve --model smollm2-135m --port 8000 numerics.mode=invariant scheduler.max_running=32
  intaglio serve --model smollm2-135m --api-keys keys.txt --max-queue 64
  intaglio serve --port 0 --ready-json
  intaglio serve --follow served.json

A file of API keys has lines `key tenant` or `key tenant admin`. With keys, /metrics and /intaglio/effective need the
key of an admin. A single key can also stand in $INTAGLIO_API_KEY, where no list of processes shows it.
The file of --follow is a JSON object of configuration paths; replace it, and the server changes over to it while
requests in flight finish on the configuration they began with. What has not finished --drain-timeout-s later is ended
with a typed error and counted in intaglio_requests_cut_total: give it at least the time of your longest answers.
"""


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `serve` to a command line; it sets `func(args, overrides) -> exit code`."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP, with OpenAI's API",
        description="Serve a model over HTTP: completions and chat in OpenAI's API, cached contexts, metrics.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="engine configuration, e.g. scheduler.max_running=32",
    )
    add("--model", metavar="M", help="a folder, a catalogue name or a hub id (default: tiny)")
    add("--served-name", metavar="NAME", help="what clients call the model (default: its last path part)")
    add("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    add("--port", type=int, default=8000, help="where to listen; 0 takes a free port (default: 8000)")
    add("--ready-json", action="store_true", help="print one line of JSON when requests are taken")
    add(
        "--follow",
        type=Path,
        metavar="FILE",
        help="serve the configuration in FILE, and every later one in it",
    )
    add("--api-keys", type=Path, metavar="FILE", help="lines `key tenant [admin]`")
    add("--api-key", metavar="KEY", help="one key, of the tenant 'default', an admin")
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-queue", type=int, metavar="N", help="most waiting requests; 429 beyond (default: 256)"
    )
    limits.add_argument(
        "--max-body-bytes", type=int, metavar="N", help="largest body; 413 beyond (default: 4 MiB)"
    )
    limits.add_argument("--request-timeout-s", type=float, metavar="S", help="longest answer (default: 600)")
    limits.add_argument(
        "--drain-timeout-s",
        type=float,
        metavar="S",
        help="time for requests in flight to finish after a change of configuration and at the end (default: 30)",
    )
    limits.add_argument(
        "--head-timeout-s",
        type=float,
        metavar="S",
        help="time for headers to arrive; 408 beyond (default: 20)",
    )
    parser.set_defaults(func=serve)


def serve(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Serve until told to stop. Returns 0, or 4 when requests had to be ended. Raises ConfigError, ModelError."""
    # Late, so that the other commands start without the HTTP libraries, and before torch loads.
    from intaglio.serve.follow import read_config
    from intaglio.serve.server import Server, bind, ready_line
    from intaglio.serve.service import Service

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    model = [] if args.model is None else [f"model={args.model}"]
    if args.follow is not None and (model or overrides):
        raise ConfigError(
            "--follow gives the whole configuration; leave --model and key=value out", field="follow"
        )
    config = read_config(args.follow) if args.follow else parse_overrides([*model, *overrides])
    keys, limits = _keys(args), _limits(args)
    bound = bind(args.host, args.port)  # first: a taken port is no reason to load a model
    try:
        service = Service(config, limits=limits, keys=keys, served_name=args.served_name)
    except BaseException:
        bound.close()
        raise
    server = Server(service, bound, follow=args.follow)
    host, port = server.address

    def ready() -> None:
        logging.getLogger("intaglio.serve").info(
            "serving %s on http://%s:%d", service.served_name, host, port
        )
        if args.ready_json:
            ready_line(server)

    return EXIT_OK if server.run(ready) else EXIT_EXECUTION


def _keys(args: argparse.Namespace) -> Any:
    from intaglio.serve.keys import Caller, KeyRing

    # An empty key, as from an unset variable of a script, must not open the server to everybody.
    single = os.environ.get("INTAGLIO_API_KEY") if args.api_key is None else args.api_key
    if args.api_keys is not None:
        if args.api_key is not None:
            raise ConfigError("give --api-key or --api-keys, not both", field="api_keys")
        return KeyRing.from_file(args.api_keys)
    return KeyRing([] if single is None else [(single, Caller("default", admin=True))])


def _limits(args: argparse.Namespace) -> Any:
    from intaglio.serve.limits import ServerLimits

    names = ("max_queue", "max_body_bytes", "request_timeout_s", "drain_timeout_s", "head_timeout_s")
    given = {name: getattr(args, name) for name in names}
    return ServerLimits(**{name: value for name, value in given.items() if value is not None})
