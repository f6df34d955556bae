"""Who is behind a record, as digests: enough to see that a reviewer is one of them, too little to read off a name.

A digest is sha256("counterproof/person\\0" packet id "\\0" name), the name in lower case. Names can be guessed, so this
hides them from a glance and from searches, not from somebody who knows whom to look for.
"""

from __future__ import annotations

import getpass
import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

from counterproof_review.trust.keys import KeyPair

GIT_SECONDS = 60.0
# Accounts that name nobody.
GENERIC = frozenset({"", "root", "admin", "user", "ubuntu", "runner", "nobody", "app", "you@example.com"})


def digests(packet_id: str, names: Iterable[str]) -> list[str]:
    """Sorted digests of names; generic accounts are left out."""
    plain = {name.strip().casefold() for name in names} - GENERIC
    prefix = f"counterproof/person\0{packet_id}\0".encode()
    return sorted(hashlib.sha256(prefix + name.encode()).hexdigest() for name in plain)


def of_record(author: KeyPair, checkout: Path) -> set[str]:
    """Everyone of a record: the author's key, this user, and whoever committed to the code."""
    return of_party(author, checkout) | _lines(checkout, "log", "--all", "--format=%an%n%ae%n%cn%n%ce")


def of_party(key: KeyPair, place: Path) -> set[str]:
    """One party: its key, its key's name, the user of this process and who git says it is."""
    found = {key.key_id, key.name, _user()}
    for field in ("user.name", "user.email"):
        found |= _lines(place, "config", field)
    return found


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no entry for this user id
        return ""


def _lines(place: Path, *arguments: str) -> set[str]:
    try:
        done = subprocess.run(
            ["git", "-C", str(place), *arguments], capture_output=True, text=True, timeout=GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return {line for line in done.stdout.splitlines() if line}
