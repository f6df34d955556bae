"""`promote`, `rollback`, `deployments` and `drill`: which configuration serves which scope."""

from __future__ import annotations

import argparse
import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from counterproof.commands import console
from counterproof.decide.deploy import box
from counterproof.errors import EXIT_AGAINST, EXIT_OK, InputError
from counterproof.record import views
from counterproof.record.deployment_ledger import DeploymentLedger, check_witnesses
from counterproof.record.deployment_state import ScopeState, Served, fold
from counterproof.record.store import Store, open_store
from counterproof.run.deploy import change
from counterproof.run.deploy.change import Promotion
from counterproof.run.deploy.drill import DrillOptions, drill

_PROMOTE = """examples:
  counterproof promote kv_cache-20260102-030405
  counterproof promote kv_cache-20260102-030405 --scope chat --prompt-tokens 20:200 --concurrency 4
  counterproof promote store/studies/kv_cache-20260102-030405/decision.json
  counterproof promote kv_cache-20260102-030405 --override override.json

Refused, with every reason: without a REPLICATED verdict, with an open counterexample, beyond the scope that was shown,
with expired evidence, without a rollback drill of the last 14 days on the code that was measured, and when it was not
compared with what serves now. An override, signed by two people, for a reason and until a date, can stand in for
expired evidence (EXPIRED) and for the drill (STALE_DRILL), and for nothing else.

exit codes: 0 promoted   2 refused   5 a record or the ledger was tampered with
"""
_ROLLBACK = """examples:
  counterproof rollback
  counterproof rollback chat --reason "p99 above its trigger"

Going back needs no evidence. Servers started with `counterproof serve` follow and lose no request.
"""
_DEPLOYMENTS = """examples:
  counterproof deployments
  counterproof deployments chat
  counterproof deployments --history
  counterproof deployments --json
"""
_DRILL = """examples:
  counterproof drill kv_cache-20260102-030405
  counterproof drill kv_cache-20260102-030405 --rounds 16 --threads 4

Starts a server of the baseline, promotes the candidate under load, rolls back, and shows that the baseline is back: no
request failed, same configuration, same outputs, and latency equivalent to an untouched server's where the rounds
suffice to tell. The drill counts for 14 days and for the code it was done with.

exit codes: 0 passed   1 failed (recorded)   4 the servers did not come up (not recorded)
"""


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the commands of this module."""
    promote = _add(
        subparsers, "promote", _promote, "let a study's candidate serve exactly the scope shown", _PROMOTE
    )
    promote.add_argument("study", metavar="STUDY|DECISION", help="a study, or its decision.json")
    promote.add_argument("--scope", metavar="NAME", help="the scope's name (default: the experiment's)")
    for name in box.SPANS:
        option = f"--{name.replace('_', '-')}"
        promote.add_argument(option, metavar="LOW:HIGH", help=f"serve only these {name.replace('_', ' ')}")
    promote.add_argument("--override", type=Path, metavar="FILE", help="an override signed by two people")
    back = _add(subparsers, "rollback", _rollback, "let what served before serve again", _ROLLBACK)
    back.add_argument("scope", nargs="?", help="the scope's name (default: the only one)")
    back.add_argument("--reason", default="", help="for the record")
    listing = _add(
        subparsers, "deployments", _deployments, "what serves which scope, and how that came", _DEPLOYMENTS
    )
    listing.add_argument("scope", nargs="?", help="only this scope")
    listing.add_argument("--history", action="store_true", help="every entry of the ledger")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    exercise = _add(subparsers, "drill", _drill, "promote on a private server, roll back, measure", _DRILL)
    exercise.add_argument("study")
    plain = DrillOptions()
    for name, value in (("rounds", plain.rounds), ("threads", plain.threads), ("probes", plain.probes)):
        exercise.add_argument(f"--{name}", type=int, default=value, metavar="N", help=f"default: {value}")


def _promote(args: argparse.Namespace) -> int:
    store = open_store()
    limits = {
        name: box.parse_span(f"--{name.replace('_', '-')}", getattr(args, name))
        for name in box.SPANS
        if getattr(args, name) is not None
    }
    event = change.promote(store, Promotion(_study_of(args.study), args.scope, limits, args.override))
    _mirror(store)
    print(f"{event['scope']}: {event['study']}/candidate serves from now on (ledger entry {event['seq']})")
    print(f"to go back: counterproof rollback {event['scope']}")
    return EXIT_OK


def _rollback(args: argparse.Namespace) -> int:
    store = open_store()
    scope = args.scope or _only_scope(store)
    event = change.roll_back(store, scope, args.reason)
    _mirror(store)
    state = fold(DeploymentLedger(store.root).read())[scope]
    serving = state.champion(datetime.datetime.now(datetime.UTC))
    print(f"{scope}: {serving.study}/{serving.arm} serves again (ledger entry {event['seq']})")
    return EXIT_OK


def _drill(args: argparse.Namespace) -> int:
    for name in ("rounds", "threads", "probes"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name} must be at least 1")
    store = open_store()
    options = DrillOptions(probes=args.probes, threads=args.threads, rounds=args.rounds)
    console.note(f"drilling {args.study}: two private servers, a promotion and a rollback under load ...")
    event = drill(store, args.study, options)
    lines = [
        ("drill", "passed" if event["passed"] else f"FAILED: {event['reason']}"),
        (
            "rollback",
            f"new requests met the baseline after {event['seconds']:.2f} s, the last answer of the "
            f"candidate ended after {event['drained_seconds']:.2f} s",
        ),
        ("requests", f"{event['requests']}, {event['failed']} failed"),
        ("latency", event["latency"]),
        ("record", str(store.root / event["record"])),
    ]
    print("\n".join(f"{name:<9} {text}" for name, text in lines))
    return EXIT_OK if event["passed"] else EXIT_AGAINST


def _deployments(args: argparse.Namespace) -> int:
    store = open_store()
    events = DeploymentLedger(store.root).read()
    witnessed = check_witnesses(store, events)
    scopes = fold(events)
    now = datetime.datetime.now(datetime.UTC)
    if args.scope is not None:
        change.scope_state(scopes, args.scope)
    shown = {name: state for name, state in scopes.items() if args.scope in (None, name)}
    history = [e for e in events if args.scope in (None, e.get("scope"))]
    if args.json:
        content: dict[str, Any] = {"scopes": {name: _facts(state, now) for name, state in shown.items()}}
        if args.history:
            content["history"] = history
        print(json.dumps(content, indent=1, sort_keys=True))
        return EXIT_OK
    if not shown and not (args.history and history):
        print("nothing was ever promoted; a study that may be: counterproof promote STUDY")
        return EXIT_OK
    rows = [row for state in shown.values() for row in _rows(state, now)]
    print(console.table(("scope", "", "study", "arm", "since", "evidence until", "ends"), rows))
    if args.history:
        print(console.table(("entry", "time", "kind", "scope", "study", "remark"), map(_entry, history)))
    console.note(f"{len(events)} entries, {witnessed} of them named in studies' own journals")
    return EXIT_OK


def _rows(state: ScopeState, now: datetime.datetime) -> list[tuple[Any, ...]]:
    roles = [("champion", state.champion(now)), ("previous", state.previous(now))]
    return [(state.name, role, *_cells(served, now)) for role, served in roles if served is not None]


def _cells(served: Served, now: datetime.datetime) -> tuple[Any, ...]:
    until = served.evidence_expires_utc
    if until is not None and datetime.datetime.fromisoformat(until) <= now:
        until = f"{until} (expired: measure again)"
    return served.study, served.arm, served.since_utc, until, served.ends_utc


def _facts(state: ScopeState, now: datetime.datetime) -> dict[str, Any]:
    previous = state.previous(now)
    return {
        "champion": asdict(state.champion(now)),
        "previous": None if previous is None else asdict(previous),
        "baseline": asdict(state.baseline),
    }


def _entry(event: dict[str, Any]) -> tuple[Any, ...]:
    remark = event.get("reason") or ""
    if event["kind"] == "drilled":
        remark = f"passed, {event['seconds']:.2f} s" if event["passed"] else f"failed: {event['reason']}"
    names = (event.get("scope"), event.get("study"))
    return event["seq"], event["time_utc"], event["kind"], *names, remark


def _study_of(text: str) -> str:
    """The study's name, also of the path of its decision.json or of its folder."""
    path = Path(text)
    if path.name == "decision.json":
        return path.absolute().parent.name
    return path.absolute().name if path.is_dir() and "/" in text else text


def _only_scope(store: Store) -> str:
    scopes = fold(DeploymentLedger(store.root).read())
    if len(scopes) != 1:
        known = ", ".join(sorted(scopes)) or "none"
        raise InputError("which scope should go back?", details=[f"scopes: {known}"])
    return next(iter(scopes))


def _mirror(store: Store) -> None:
    for problem in views.refresh_deployments(store):
        console.note(f"warning: {problem}")


def _add(
    subparsers: argparse._SubParsersAction[Any], name: str, func: Any, text: str, epilog: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(func=func)
    return parser
