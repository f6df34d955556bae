"""`counterproof keys new|list|show|trust|registry|revoke`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterproof.commands.console import note, table
from counterproof.errors import EXIT_OK, InputError

_EPILOG = """examples:
  counterproof keys new ada                                    your keys, mode 0600, outside every repository
  counterproof keys list
  counterproof keys show ada > ada.public.json                 hand this line to the steward, never the key file
  counterproof keys registry new --key stella --out registry.dsse.json
  counterproof keys registry add registry.dsse.json --key stella --public ada.public.json --role author
  counterproof keys registry show registry.dsse.json
  counterproof keys revoke registry.dsse.json KEYID --key stella --at 12
  counterproof keys trust KEYID                                the steward's id, told by another way than a file

Keys lie in $COUNTERPROOF_KEYS, else in ~/.config/counterproof/keys. One person, one key, one role.
"""
_REGISTRY = """examples:
  counterproof keys registry new --key stella --out registry.dsse.json
  counterproof keys registry add registry.dsse.json --key stella --public ada.public.json --role author
  counterproof keys registry show registry.dsse.json

Every change is a new version that names the one before it and is signed by the steward.
"""
_REVOKE = """examples:
  counterproof keys revoke registry.dsse.json 3f2a... --key stella --at 12

What the key signed in the first 12 places of its ledger stays valid, and nothing after. A new key takes its role.
"""


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command `keys`."""
    keys = parser(subparsers, "keys", "keys, who is who, and whom to trust", _EPILOG)
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = parser(actions, "new", "make your keys under a name", _EPILOG)
    new.add_argument("name")
    new.set_defaults(func=_new)
    parser(actions, "list", "list your keys", _EPILOG).set_defaults(func=_list)
    show = parser(actions, "show", "print what others may know of a key", _EPILOG)
    show.add_argument("name")
    show.set_defaults(func=_show)
    trust = parser(actions, "trust", "trust a steward by key id", _EPILOG)
    trust.add_argument("keyid")
    trust.set_defaults(func=_trust)
    _add_registry(actions)
    revoke = parser(actions, "revoke", "revoke a key in the registry (steward)", _REVOKE)
    revoke.add_argument("registry", type=Path)
    revoke.add_argument("keyid", help="the key id, or its first 8 digits or more")
    revoke.add_argument("--key", required=True, help="the steward's key")
    revoke.add_argument("--at", type=int, required=True, help="the first place of its ledger it may not sign")
    revoke.set_defaults(func=_revoke)


def _add_registry(actions: argparse._SubParsersAction[Any]) -> None:
    registry = parser(actions, "registry", "make, extend or print the registry of keys (steward)", _REGISTRY)
    which = registry.add_subparsers(dest="what", required=True, metavar="WHAT")
    new = parser(which, "new", "a first registry with the steward alone", _REGISTRY)
    new.add_argument("--key", required=True, help="the steward's key")
    new.add_argument("--out", type=Path, required=True)
    new.set_defaults(func=_registry_new)
    add = parser(which, "add", "enter somebody", _REGISTRY)
    add.add_argument("registry", type=Path)
    add.add_argument("--key", required=True, help="the steward's key")
    add.add_argument("--public", type=Path, required=True, help="what `keys show` printed for them")
    add.add_argument("--role", required=True, choices=("author", "reviewer", "steward"))
    add.set_defaults(func=_registry_add)
    show = parser(which, "show", "verify a registry and print it", _REGISTRY)
    show.add_argument("registry", type=Path)
    show.set_defaults(func=_registry_show)


def parser(
    subparsers: argparse._SubParsersAction[Any], name: str, summary: str, epilog: str
) -> argparse.ArgumentParser:
    """A command's parser with its examples."""
    made: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return made


def _new(args: argparse.Namespace) -> int:
    from counterproof_review.trust import keys

    pair = keys.new(args.name)
    print(pair.key_id)
    note(f"keys '{args.name}' lie in {keys.folder()}; whoever reads them can sign as you")
    note(f"hand the steward the output of: counterproof keys show {args.name}")
    return EXIT_OK


def _list(_args: argparse.Namespace) -> int:
    from counterproof_review.trust import keys, private

    rows = [(name, (pair := keys.load(name)).key_id, pair.created_utc) for name in keys.names()]
    print(table(("name", "key id", "made"), rows) if rows else "no keys here; counterproof keys new NAME")
    for steward in sorted(private.trusted()):
        note(f"trusted as steward: {steward}")
    return EXIT_OK


def _show(args: argparse.Namespace) -> int:
    from counterproof_review.trust import keys

    print(json.dumps(keys.load(args.name).public(), sort_keys=True))
    return EXIT_OK


def _trust(args: argparse.Namespace) -> int:
    from counterproof_review.trust import private

    private.trust(args.keyid)
    note(f"registries signed by {args.keyid[:16]} are trusted here from now on")
    return EXIT_OK


def _registry_new(args: argparse.Namespace) -> int:
    from counterproof_review.trust import keys, registry

    if args.out.exists():
        raise InputError(f"{args.out} is there already; extend it with: counterproof keys registry add")
    _write(args.out, registry.create(keys.load(args.key), []))
    return EXIT_OK


def _registry_add(args: argparse.Namespace) -> int:
    from counterproof_review.trust import keys, registry

    steward = keys.load(args.key)
    current = registry.read(args.registry.read_bytes(), steward.key_id)
    _write(args.registry, registry.extend(current, steward, _public(args.public), args.role))
    return EXIT_OK


def _registry_show(args: argparse.Namespace) -> int:
    from counterproof_review.protocol import folder

    found = folder.read_registry(args.registry)
    rows = [
        (e.name, e.role, e.keyid, "no" if e.revoked_at is None else f"from place {e.revoked_at} on")
        for e in found.entries
    ]
    print(table(("name", "role", "key id", "revoked"), rows))
    note(f"version {found.version}, signed by {found.steward}")
    return EXIT_OK


def _revoke(args: argparse.Namespace) -> int:
    from counterproof_review.trust import keys, registry

    steward = keys.load(args.key)
    current = registry.read(args.registry.read_bytes(), steward.key_id)
    matching = [e.keyid for e in current.entries if len(args.keyid) >= 8 and e.keyid.startswith(args.keyid)]
    if len(matching) != 1:
        raise InputError(f"'{args.keyid}' names {len(matching)} keys of the registry; give more digits")
    if args.at < 0:
        raise InputError("--at counts places of a ledger from 0")
    _write(args.registry, registry.revoke(current, steward, matching[0], args.at))
    return EXIT_OK


def _public(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no public key line: {error}") from None
    if not isinstance(found, Mapping) or not all(isinstance(v, str) for v in found.values()):
        raise InputError(f"{path} is no public key line", details=["make one: counterproof keys show NAME"])
    return dict(found)


def _write(path: Path, data: bytes) -> None:
    from counterproof.record import atomic

    atomic.write_bytes(path, data)
    note(f"wrote {path}")
