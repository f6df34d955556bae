"""Who may sign what: the registry of public keys with their roles, signed by the steward whose key is in it.

A DSSE envelope whose predicate is {"version", "previous", "entries": [{"keyid", "name", "role", "sign", "seal",
"revoked_at"}]}. `revoked_at` is a number of ledger entries: what the key signed in places before it stays valid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from counterproof_review.trust import dsse
from counterproof_review.trust.encoding import from_hex
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair

PREDICATE = "urn:counterproof:registry:1"
ROLES = ("author", "reviewer", "steward")
SUBJECT = "registry"
_FIELDS = {"keyid", "name", "role", "sign", "seal", "revoked_at"}


@dataclass(frozen=True)
class Entry:
    """One person in one role. `sign`, `seal`: raw public keys."""

    keyid: str
    name: str
    role: str
    sign: bytes
    seal: bytes
    revoked_at: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "keyid": self.keyid,
            "name": self.name,
            "role": self.role,
            "sign": self.sign.hex(),
            "seal": self.seal.hex(),
            "revoked_at": self.revoked_at,
        }


@dataclass(frozen=True)
class Registry:
    """A verified registry. `sha256` of its envelope; `steward`: the key id that signed it."""

    version: int
    previous: str | None
    entries: tuple[Entry, ...]
    sha256: str
    steward: str

    @property
    def keys(self) -> dict[str, bytes]:
        """Public signing keys by key id, revoked ones too: their old signatures must still be checkable."""
        return {entry.keyid: entry.sign for entry in self.entries}

    def entry(self, keyid: str) -> Entry:
        """Raises TrustError E_KEY_UNKNOWN."""
        for entry in self.entries:
            if entry.keyid == keyid:
                return entry
        raise TrustError("E_KEY_UNKNOWN", f"no key {keyid[:16]} is registered")

    def require(self, keyid: str, role: str, seq: int) -> Entry:
        """The entry, if that key may sign as `role` in place `seq` of a ledger.

        Raises TrustError E_KEY_UNKNOWN, E_ROLE or E_KEY_REVOKED.
        """
        entry = self.entry(keyid)
        if entry.role != role:
            raise TrustError("E_ROLE", f"{entry.name} is registered as {entry.role}, not as {role}")
        if entry.revoked_at is not None and seq >= entry.revoked_at:
            raise TrustError(
                "E_KEY_REVOKED", f"the key of {entry.name} is revoked from place {entry.revoked_at} on"
            )
        return entry


def create(steward: KeyPair, people: Sequence[tuple[dict[str, str], str]]) -> bytes:
    """A first registry: the steward, and (public line of a key, role) of everyone else."""
    entries = [_entry(steward.public(), "steward"), *(_entry(public, role) for public, role in people)]
    return _sign(steward, 1, None, entries)


def extend(current: Registry, steward: KeyPair, public: dict[str, str], role: str) -> bytes:
    """The next version with one person more. Raises TrustError E_REGISTRY for a key that is there already."""
    entry = _entry(public, role)
    if any(entry.keyid == other.keyid for other in current.entries):
        raise TrustError(
            "E_REGISTRY", f"the key of {entry.name} is registered already, and a key has one role"
        )
    return _sign(steward, current.version + 1, current.sha256, [*current.entries, entry])


def revoke(current: Registry, steward: KeyPair, keyid: str, at: int) -> bytes:
    """The next version in which `keyid` signs nothing from place `at` of a ledger on."""
    found = current.entry(keyid)
    if found.revoked_at is not None:
        raise TrustError("E_REGISTRY", f"the key of {found.name} is revoked already; that cannot be moved")
    entries = [replace(e, revoked_at=at) if e.keyid == keyid else e for e in current.entries]
    return _sign(steward, current.version + 1, current.sha256, entries)


def read(data: bytes, steward: str, previous: Registry | None = None) -> Registry:
    """Verify a registry. `steward`: the key id that the reader trusts, told by another way than the file.

    With `previous` it must be its direct successor and may only add people or revoke.
    Raises TrustError E_REGISTRY, and what `dsse.verify` raises.
    """
    keys = {steward: _steward_key(data, steward)}
    signed = dsse.verify(data, keys)
    if signed.predicate_type != PREDICATE or signed.signers != (steward,):
        raise TrustError("E_REGISTRY", "this is no registry signed by the steward alone")
    entries = _entries(signed.predicate)
    if signed.subjects != {SUBJECT: _digest(entries)}:
        raise TrustError("E_REGISTRY", "the registry's subject is not its own content")
    version, before = signed.predicate["version"], signed.predicate["previous"]
    found = Registry(version, before, entries, signed.sha256, steward)
    if previous is not None:
        _check_successor(found, previous)
    return found


def _check_successor(found: Registry, previous: Registry) -> None:
    if found.version != previous.version + 1 or found.previous != previous.sha256:
        raise TrustError("E_REGISTRY", f"version {found.version} does not follow version {previous.version}")
    kept = {entry.keyid: entry for entry in found.entries}
    for entry in previous.entries:
        now = kept.get(entry.keyid)
        same = now is not None and replace(now, revoked_at=entry.revoked_at) == entry
        moved = same and now is not None and entry.revoked_at not in (None, now.revoked_at)
        if not same or moved:
            raise TrustError("E_REGISTRY", f"the entry of {entry.name} was changed or removed")


def _steward_key(data: bytes, steward: str) -> bytes:
    """The steward's public key as the envelope itself carries it; its hash must be the trusted id."""
    content = dsse.peek(data)
    for entry in _entries(content):
        if entry.keyid == steward and entry.role == "steward":
            return entry.sign
    raise TrustError("E_REGISTRY", f"the registry does not hold the steward {steward[:16]}")


def _entries(predicate: dict[str, Any]) -> tuple[Entry, ...]:
    if set(predicate) != {"version", "previous", "entries"} or not isinstance(predicate["entries"], list):
        raise TrustError("E_REGISTRY", "the registry has other fields than version, previous and entries")
    version, previous = predicate["version"], predicate["previous"]
    if type(version) is not int or version < 1 or (previous is None) != (version == 1):
        raise TrustError("E_REGISTRY", "the registry's version and predecessor do not fit together")
    if previous is not None:
        from_hex(previous, "the predecessor's digest", length=32)
    entries = tuple(_read_entry(one) for one in predicate["entries"])
    ids = [entry.keyid for entry in entries]
    if ids != sorted(set(ids)):
        raise TrustError("E_REGISTRY", "entries must stand in the order of their key ids, one each")
    return entries


def _read_entry(one: object) -> Entry:
    if not isinstance(one, dict) or set(one) != _FIELDS:
        raise TrustError("E_REGISTRY", f"an entry has other fields than {', '.join(sorted(_FIELDS))}")
    revoked = one["revoked_at"]
    if one["role"] not in ROLES or not isinstance(one["name"], str):
        raise TrustError("E_REGISTRY", f"an entry's role must be one of {', '.join(ROLES)}")
    if revoked is not None and (type(revoked) is not int or revoked < 0):
        raise TrustError("E_REGISTRY", "revoked_at must be null or a place in a ledger")
    sign = from_hex(one["sign"], "a signing key", length=32)
    if dsse.key_id(sign) != one["keyid"]:
        raise TrustError("E_REGISTRY", "an entry's key id is not the hash of its key")
    seal = from_hex(one["seal"], "a seal key", length=32)
    return Entry(one["keyid"], one["name"], one["role"], sign, seal, revoked)


def _entry(public: dict[str, str], role: str) -> Entry:
    if set(public) != {"keyid", "name", "sign", "seal"}:
        raise TrustError("E_REGISTRY", "a public key line has the fields keyid, name, sign and seal")
    return _read_entry({**public, "role": role, "revoked_at": None})


def _sign(steward: KeyPair, version: int, previous: str | None, entries: Sequence[Entry]) -> bytes:
    ordered = tuple(sorted(entries, key=lambda entry: entry.keyid))
    predicate = {"version": version, "previous": previous, "entries": [e.as_dict() for e in ordered]}
    content = dsse.statement(PREDICATE, {SUBJECT: _digest(ordered)}, predicate)
    return dsse.sign(content, [steward.sign])


def _digest(entries: Sequence[Entry]) -> str:
    whole = hashlib.sha256()
    for entry in entries:
        line = f"{entry.keyid} {entry.role} {entry.name} {entry.sign.hex()} {entry.seal.hex()} {entry.revoked_at}\n"
        whole.update(line.encode())
    return whole.hexdigest()
