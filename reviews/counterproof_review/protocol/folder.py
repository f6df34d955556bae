"""A review's folder: registry, three ledgers, packets. One party's own, filled by bundles, or one that all share.

registry.dsse.json                     who may sign what
ledgers/{author,reviewer,steward}.jsonl  each written by its party alone
packets/<id>.rep.zip                   every packet that was issued
attempts/<n>/                          the reviewer's: what an attempt left
challenge.json, verdict.json           what their ledger entries name by SHA-256
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.record.canonical import sha256_bytes
from counterproof.record.journal import now_utc
from counterproof_review.protocol import events, machine
from counterproof_review.protocol.events import PARTIES, Event
from counterproof_review.protocol.machine import State
from counterproof_review.trust import keys, ledger, private, registry
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair
from counterproof_review.trust.ledger import WITNESS, Entry, Ledger
from counterproof_review.trust.registry import Registry

REGISTRY = "registry.dsse.json"
CHALLENGE = "challenge.json"
VERDICT = "verdict.json"
ATTEMPTS = "attempts"
# Files that an entry of this kind names by SHA-256, and the field of its body that does.
NAMED: Mapping[str, tuple[str, str]] = {
    VERDICT: (events.VERDICT, "sha256"),
    CHALLENGE: (events.CHALLENGE, "report_sha256"),
}


@dataclass(frozen=True)
class Folder:
    """Paths inside a review's folder."""

    root: Path

    @property
    def registry(self) -> Path:
        return self.root / REGISTRY

    def ledger(self, role: str) -> Path:
        return self.root / "ledgers" / f"{role}.jsonl"

    def packet(self, packet_id: str) -> Path:
        return self.root / "packets" / f"{packet_id}.rep.zip"

    def attempt(self, number: int) -> Path:
        return self.root / ATTEMPTS / f"{number:02d}"


@dataclass(frozen=True)
class Review:
    """A folder that was read and verified: every signature, link, witnessed head and step."""

    folder: Folder
    registry: Registry
    ledgers: Mapping[str, list[Entry]]
    state: State

    def heads(self) -> dict[str, int]:
        """How many entries each ledger has."""
        return {role: len(self.ledgers[role]) for role in PARTIES}


def read(root: Path) -> Review:
    """Read a review. Raises TrustError for anything that is not exactly what its parties signed."""
    folder = Folder(root)
    known = read_registry(folder.registry)
    ledgers = {role: Ledger(folder.ledger(role)).read(known) for role in PARTIES}
    for role in PARTIES:
        others = [ledgers[other] for other in PARTIES if other != role]
        ledger.check_witnessed(ledgers[role], role, others)
    for name in NAMED:
        path = root / name
        if path.is_symlink():
            raise TrustError("E_COMMIT", f"{name} is a link; put the file itself there")
        if path.is_file():
            check_named(ledgers, name, path.read_bytes())
    return Review(folder, known, ledgers, machine.run(events.in_order(ledgers)))


def check_named(ledgers: Mapping[str, list[Entry]], name: str, data: bytes) -> None:
    """Raise TrustError E_COMMIT where a ledger names another `name` than these bytes."""
    kind, field = NAMED[name]
    signed = {e.body.get(field) for role in PARTIES for e in ledgers[role] if e.kind == kind}
    if signed - {None} and sha256_bytes(data) not in signed:
        raise TrustError("E_COMMIT", f"{name} is not the one that was signed")


def read_registry(path: Path) -> Registry:
    """The registry of a review, if a steward signed it who is trusted here.

    Raises TrustError E_REGISTRY when there is none, or nobody trusted signed it.
    """
    if not path.is_file():
        raise TrustError("E_REGISTRY", f"there is no {path.name} in {path.parent}; ask the steward for it")
    return check_registry(path.read_bytes())


def check_registry(data: bytes) -> Registry:
    """As `read_registry`, for bytes that are no file yet."""
    stewards = private.trusted() | _own_keys()
    if not stewards:
        raise TrustError(
            "E_REGISTRY",
            "no steward is trusted here",
            details=[
                "counterproof keys trust KEYID   (the id that the steward told you, not one from a file)"
            ],
        )
    problem = TrustError("E_REGISTRY", "no steward that is trusted here signed the registry")
    for steward in sorted(stewards):
        try:
            return registry.read(data, steward)
        except TrustError as error:
            if error.code not in ("E_REGISTRY", "E_KEY_UNKNOWN"):
                problem = error
    raise problem


def _own_keys() -> frozenset[str]:
    """A steward trusts itself."""
    return frozenset(keys.load(name).key_id for name in keys.names())


def my_key(name: str | None, review: Registry, roles: tuple[str, ...]) -> tuple[KeyPair, str]:
    """The key to sign with and its role: the named one, or the only one here that is registered in one of `roles`.

    Raises TrustError E_KEY_NAME or E_ROLE.
    """
    found = []
    for candidate in [name] if name else keys.names():
        pair = keys.load(candidate)
        found += [(pair, e.role) for e in review.entries if e.keyid == pair.key_id and e.role in roles]
    if len(found) == 1:
        return found[0]
    if name:
        raise TrustError("E_ROLE", f"the key '{name}' is not registered as {' or '.join(roles)}")
    raise TrustError(
        "E_KEY_NAME",
        f"{len(found)} keys here are registered as {' or '.join(roles)}",
        details=["give --key NAME"],
    )


def enter(
    review: Review, key: KeyPair, role: str, kind: str, body: Mapping[str, Any], subjects: Mapping[str, str]
) -> Review:
    """Take one step: check that it is due, witness what the others wrote, sign and append. Returns the new state.

    Raises TrustError E_PROTOCOL when the step is not due; then nothing was written.
    """
    seen = {other: count for other, count in review.heads().items() if other != role}
    place = review.heads()[role]
    event = Event(role, place + len(seen), kind, body, key.key_id, "", now_utc(), seen)
    machine.due(review.state, event)
    file = Ledger(review.folder.ledger(role))
    witness_others(review, key, role)
    file.append(review.registry, key, role, kind, body, subjects)
    return read(review.folder.root)


def witness_others(review: Review, key: KeyPair, role: str) -> int:
    """Write the heads of the other ledgers, as far as they moved, into one's own. Returns how many."""
    file = Ledger(review.folder.ledger(role))
    last = {e.body["ledger"]: e.body["sha256"] for e in review.ledgers[role] if e.kind == WITNESS}
    count = 0
    for other in PARTIES:
        head = ledger.head(review.ledgers[other])
        if other != role and head.seq >= 0 and last.get(other) != head.sha256:
            file.witness(review.registry, key, role, other, head)
            count += 1
    return count
