"""`serve`: a server that follows the ledger of deployments."""

from __future__ import annotations

import argparse
import datetime
import threading
from typing import Any

from counterproof.commands import console
from counterproof.decide.deploy import entries
from counterproof.errors import InputError
from counterproof.record import canonical
from counterproof.record.deployment_ledger import DeploymentLedger
from counterproof.record.deployment_state import BASELINE, Served, fold
from counterproof.record.store import Store, open_store
from counterproof.record.verify import verify_plan
from counterproof.run.deploy import change
from counterproof.run.deploy.scope_server import ScopeServer, remove_stale

_EXAMPLES = """examples:
  counterproof serve --scope kv_cache --port 8000
  counterproof serve --scope chat --baseline kv_cache-20260102-030405 --port 0 --ready-json
  counterproof serve --scope chat --api-keys keys.txt --max-queue 64

Serves the scope's champion, and changes over when `promote`, `rollback` or the end of an override changes it; requests in
flight finish on the configuration they began with. GET /intaglio/effective shows what serves, and each answer names it in
the header x-intaglio-config. A scope in which nothing was promoted yet needs --baseline.
"""
# Options that go to the engine's server as they are.
_PASSED = ("host", "port", "served_name", "api_keys", "max_queue", "request_timeout_s", "drain_timeout_s")


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command of this module."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a scope over HTTP, following promotions and rollbacks",
        description="Serve a scope over HTTP, following promotions and rollbacks.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scope", required=True, metavar="NAME", help="which scope to serve")
    parser.add_argument(
        "--baseline", metavar="STUDY", help="serve this study's baseline until something is promoted"
    )
    parser.add_argument("--ready-json", action="store_true", help="print one line of JSON when ready")
    parser.add_argument("--host", metavar="H", help="where to listen (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, metavar="P", help="where to listen; 0: a free one (default: 8000)"
    )
    parser.add_argument("--served-name", metavar="NAME", help="what clients call the model")
    parser.add_argument("--api-keys", metavar="FILE", help="lines `key tenant [admin]`")
    parser.add_argument("--max-queue", type=int, metavar="N", help="most waiting requests")
    parser.add_argument("--request-timeout-s", type=float, metavar="S", help="longest answer")
    parser.add_argument(
        "--drain-timeout-s",
        type=float,
        metavar="S",
        help="time for requests in flight to finish after a change and at the end (default: 600)",
    )
    parser.set_defaults(func=_serve)


def _serve(args: argparse.Namespace) -> int:
    store = open_store().create()
    scope = change.check_name(args.scope)
    baseline = _baseline(store, scope, args.baseline)
    remove_stale(store.root / "serving")
    more = []
    for name in _PASSED:
        if getattr(args, name) is not None:
            more += [f"--{name.replace('_', '-')}", str(getattr(args, name))]

    def ready(line: str) -> None:
        if args.ready_json:
            print(line, flush=True)

    server = ScopeServer(store, scope, baseline=baseline, more=more, tell=console.note, ready=ready)
    return server.run(threading.Event())


def _baseline(store: Store, scope: str, study: str | None) -> Served | None:
    """What serves before anything is promoted. Raises InputError where the ledger knows nothing and no study is named."""
    known = fold(DeploymentLedger(store.root).read())
    if study is None:
        if scope not in known:
            raise InputError(
                f"nothing was promoted in the scope '{scope}' yet, so its baseline is not known",
                details=[
                    "name the study whose baseline should serve: --baseline STUDY",
                    f"scopes: {', '.join(sorted(known)) or 'none'}",
                ],
            )
        return None
    plan = verify_plan(store.study(study))[0]
    config = entries.engine_config(plan, BASELINE)
    digest = canonical.sha256_json(config)
    if scope in known and known[scope].baseline.config_sha256 != digest:
        raise InputError(
            f"the scope '{scope}' has another baseline than {study}'s", details=["leave --baseline out"]
        )
    now = entries.stamp(datetime.datetime.now(datetime.UTC))
    return Served(scope, -1, study, BASELINE, config, digest, {}, now)
