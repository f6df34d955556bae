"""`counterproof override request|sign|show`: two people let a promotion through that lacks a drill or fresh evidence."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterproof.commands.console import note
from counterproof.decide.deploy import override
from counterproof.decide.deploy.refusal import DeploymentRefusedError
from counterproof.decide.deploy.reviewer import SignedOverride
from counterproof.errors import EXIT_OK, InputError
from counterproof.record.store import Store, open_store
from counterproof_review.key_commands import parser

if TYPE_CHECKING:
    from counterproof_review.trust.keys import KeyPair
    from counterproof_review.trust.registry import Registry

FILE = "override.json"
DAYS = 7.0
ONE_SIGNED = "OVERRIDE_SIGNERS"
_EPILOG = """examples:
  counterproof override request kv_cache-20260102-030405 --waive STALE_DRILL --days 3 --key ada \\
      --reason "the drill machine is being repaired until Friday"
  counterproof override show override.json
  counterproof override sign override.json --key stella
  counterproof promote kv_cache-20260102-030405 --override override.json

An override stands in for expired evidence (EXPIRED) and for a rollback drill (STALE_DRILL), in one scope of one study,
until a date at most 30 days away, once. It never stands in for a replication or an open counterexample and widens no scope.
Two people sign: whoever asks, and a second one of the registry registry.dsse.json in the store.

exit codes: 0 done   2 refused or bad input   3 a key is missing   5 not what was signed, or signed by nobody known here
"""


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command `override`."""
    top = parser(subparsers, "override", "sign an override of a promotion, by two people", _EPILOG)
    which = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    request = parser(which, "request", "write an override and sign it as the first of two", _EPILOG)
    request.add_argument("study")
    request.add_argument("--scope", metavar="NAME", help="the scope's name (default: the experiment's)")
    request.add_argument(
        "--waive", action="append", required=True, choices=override.WAIVABLE, help="what it stands in for"
    )
    request.add_argument("--reason", required=True, help="why this cannot wait, in words")
    request.add_argument(
        "--days", type=float, default=DAYS, metavar="D", help=f"how long it may serve (default: {DAYS:g})"
    )
    request.add_argument("--out", type=Path, default=Path(FILE), metavar="FILE", help=f"default: {FILE}")
    request.set_defaults(func=_request)
    sign = parser(which, "sign", "sign somebody else's override as the second of two", _EPILOG)
    sign.add_argument("file", type=Path)
    sign.set_defaults(func=_sign)
    for one in (request, sign):
        one.add_argument("--key", metavar="NAME", help="your key (default: the only registered one here)")
    show = parser(which, "show", "check an override and say what it allows", _EPILOG)
    show.add_argument("file", type=Path)
    show.set_defaults(func=_show)


def _request(args: argparse.Namespace) -> int:
    from counterproof.record import atomic
    from counterproof.record.verify import verify_plan
    from counterproof.run.deploy.change import check_name
    from counterproof_review.reviewer import sign_override

    if args.out.exists():
        raise InputError(f"{args.out} is there already", details=["give another name: --out FILE"])
    store = open_store()
    plan, digest, _ = verify_plan(store.study(args.study))
    key, _ = _my_key(args.key, store)
    content = {
        "study": plan["study"],
        "plan_sha256": digest,
        "scope": check_name(args.scope or str(plan["experiment"])),
        "waives": sorted(set(args.waive)),
        "reason": args.reason.strip(),
        "expires_utc": _end(args.days),
    }
    data = sign_override(content, [key])
    wanted = SignedOverride(**{**content, "waives": tuple(content["waives"])}, signers=(key.name,), sha256="")
    _refuse_faults(wanted, store)
    atomic.write_bytes(args.out, data)
    print(_words(wanted))
    note(f"signed by {key.name} alone, which counts for nothing yet; have a second person")
    note(f"read and sign it: counterproof override sign {args.out}")
    return EXIT_OK


def _sign(args: argparse.Namespace) -> int:
    from counterproof.record import atomic
    from counterproof_review.reviewer import InstalledReviewer, read_file
    from counterproof_review.trust import dsse

    store = open_store()
    found = InstalledReviewer().override(store.root, args.file)
    _refuse_faults(found, store)
    print(_words(found))
    key, known = _my_key(args.key, store)
    if known.entry(key.key_id).name in found.signers:
        raise InputError(
            f"{key.name} has signed this already", details=["the second signature is another person's"]
        )
    atomic.write_bytes(args.file, dsse.countersign(read_file(args.file), known.keys, key.sign))
    note(f"signed by {', '.join([*found.signers, key.name])}; to use it:")
    note(f"counterproof promote {found.study} --scope {found.scope} --override {args.file}")
    return EXIT_OK


def _show(args: argparse.Namespace) -> int:
    from counterproof_review.reviewer import InstalledReviewer

    store = open_store()
    found = InstalledReviewer().override(store.root, args.file)
    print(_words(found))
    _refuse_faults(found, store, but=())
    return EXIT_OK


def _my_key(name: str | None, store: Store) -> tuple[KeyPair, Registry]:
    """The key to sign with, which must be registered in the store and not revoked. Raises TrustError."""
    from counterproof_review.protocol import folder
    from counterproof_review.reviewer import REGISTRY
    from counterproof_review.trust.errors import TrustError
    from counterproof_review.trust.registry import ROLES

    known = folder.read_registry(store.root / REGISTRY)
    key, _ = folder.my_key(name, known, ROLES)
    if known.entry(key.key_id).revoked_at is not None:
        raise TrustError("E_KEY_REVOKED", f"the key '{key.name}' is revoked")
    return key, known


def _refuse_faults(found: SignedOverride, store: Store, but: tuple[str, ...] = (ONE_SIGNED,)) -> None:
    """Raise what would make it count for nothing, so that nobody signs in vain. `but`: codes that are no matter yet."""
    from counterproof.record.verify import verify_plan

    plan, digest, _ = verify_plan(store.study(found.study))
    now = datetime.datetime.now(datetime.UTC)
    faults = override.faults(found, plan, digest, found.scope, now)
    if left := [fault for fault in faults if fault.code not in but]:
        raise DeploymentRefusedError(f"the override for {found.study}", left)


def _end(days: float) -> str:
    if not 0 < days <= override.LONGEST_DAYS:
        raise InputError(f"--days must be more than 0 and at most {override.LONGEST_DAYS}, not {days:g}")
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    return end.isoformat(timespec="seconds")


def _words(found: SignedOverride) -> str:
    lines = [
        ("study", found.study),
        ("scope", found.scope),
        ("waives", ", ".join(found.waives)),
        ("reason", found.reason),
        ("until", found.expires_utc),
        ("signers", ", ".join(found.signers)),
    ]
    return "\n".join(f"{name:<8} {text}" for name, text in lines)
