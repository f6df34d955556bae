"""One party's ledger: signed entries, each naming the one before it, and the heads of others that it has seen.

`ledger.jsonl` holds one DSSE envelope a line. An entry's predicate is {"seq", "prev", "kind", "role", "time_utc",
"body"}; `prev` is the sha256 of the envelope before it (64 zeros for the first). A chain alone cannot show that its
end was cut off, so each side writes the other's head into its own ledger (kind "witness"), and what was witnessed
must still be there. Times inform; order comes from the chain alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.record.journal import now_utc
from counterproof.record.lock import FileLock
from counterproof_review.trust import dsse
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair
from counterproof_review.trust.registry import ROLES, Registry

PREDICATE = "urn:counterproof:ledger:1"
FIRST = "0" * 64
WITNESS = "witness"
MAX_ENTRIES = 100_000
_FIELDS = {"seq", "prev", "kind", "role", "time_utc", "body"}


@dataclass(frozen=True)
class Entry:
    """One verified entry. `sha256` is what the next entry names, `signer` the key id."""

    seq: int
    prev: str
    kind: str
    role: str
    time_utc: str
    body: dict[str, Any]
    signer: str
    sha256: str


@dataclass(frozen=True)
class Head:
    """The last entry of a ledger as somebody saw it. An empty ledger has seq -1 and 64 zeros."""

    seq: int
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        return {"seq": self.seq, "sha256": self.sha256}


class Ledger:
    """A ledger file. Appending verifies what is there first, and is safe against other processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, registry: Registry) -> list[Entry]:
        """All entries, verified. An absent file is an empty ledger. Raises TrustError (see `verify`)."""
        return verify(self.path.read_bytes(), registry) if self.path.is_file() else []

    def append(
        self,
        registry: Registry,
        key: KeyPair,
        role: str,
        kind: str,
        body: Mapping[str, Any],
        subjects: Mapping[str, str],
    ) -> Entry:
        """Sign and append one entry, flushed to the disk. Raises TrustError; then nothing was written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_suffix(".lock"), wait_s=30.0, what=f"the ledger {self.path.name}"):
            entries = self.read(registry)
            seq = len(entries)
            registry.require(key.key_id, role, seq)
            predicate = {
                "seq": seq,
                "prev": entries[-1].sha256 if entries else FIRST,
                "kind": kind,
                "role": role,
                "time_utc": now_utc(),
                "body": dict(body),
            }
            data = dsse.sign(dsse.statement(PREDICATE, subjects, predicate), [key.sign])
            entry = _entry(data, registry)
            with self.path.open("ab") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return entry

    def witness(self, registry: Registry, key: KeyPair, role: str, of: str, head: Head) -> Entry:
        """Write the head of the ledger of party `of` (a key id) into this one."""
        body = {"ledger": of, **head.as_dict()}
        return self.append(registry, key, role, WITNESS, body, {f"ledger/{of}": head.sha256})


def verify(data: bytes, registry: Registry) -> list[Entry]:
    """Check every signature, role, place and link.

    Raises TrustError E_ENVELOPE, E_SIGNATURE, E_KEY_UNKNOWN, E_ROLE, E_KEY_REVOKED or E_CHAIN; the message names
    the line.
    """
    if data and not data.endswith(b"\n"):
        raise TrustError("E_CHAIN", "the ledger's last line was cut off")
    lines = data.split(b"\n")[:-1] if data else []
    if len(lines) > MAX_ENTRIES:
        raise TrustError("E_CHAIN", f"the ledger has more than {MAX_ENTRIES} entries")
    entries: list[Entry] = []
    for number, line in enumerate(lines):
        try:
            entry = _entry(line + b"\n", registry)
            _check_link(entry, number, entries[-1] if entries else None)
            registry.require(entry.signer, entry.role, entry.seq)
        except TrustError as error:
            raise TrustError(error.code, f"line {number + 1}: {error}") from None
        entries.append(entry)
    return entries


def head(entries: Sequence[Entry]) -> Head:
    """The head of verified entries."""
    return Head(entries[-1].seq, entries[-1].sha256) if entries else Head(-1, FIRST)


def check_witnessed(entries: Sequence[Entry], owner: str, others: Iterable[Sequence[Entry]]) -> None:
    """Everything that other parties saw of the ledger of `owner` (a key id) must still be there, in its place.

    Raises TrustError E_TRUNCATED for a missing end, E_FORK for another entry in a witnessed place (with both).
    """
    for other in others:
        for seen in other:
            if seen.kind != WITNESS or seen.body.get("ledger") != owner:
                continue
            seq, digest = seen.body["seq"], seen.body["sha256"]
            if seq >= len(entries):
                raise TrustError(
                    "E_TRUNCATED",
                    f"the ledger has {len(entries)} entries, but place {seq} was witnessed in {seen.sha256[:16]}",
                )
            if seq >= 0 and entries[seq].sha256 != digest:
                raise TrustError(
                    "E_FORK",
                    f"place {seq} holds another entry than the one that was witnessed",
                    details=[f"here {entries[seq].sha256}", f"witnessed {digest}"],
                )


def check_same(first: Sequence[Entry], second: Sequence[Entry]) -> None:
    """Two copies of one ledger: one must continue the other. Raises TrustError E_FORK with both entries."""
    for one, other in zip(first, second, strict=False):
        if one.sha256 != other.sha256:
            raise TrustError(
                "E_FORK",
                f"two entries stand in place {one.seq}",
                details=[f"{one.kind} {one.sha256}", f"{other.kind} {other.sha256}"],
            )


def _entry(data: bytes, registry: Registry) -> Entry:
    signed = dsse.verify(data, registry.keys)
    found = signed.predicate
    if signed.predicate_type != PREDICATE or set(found) != _FIELDS or len(signed.signers) != 1:
        raise TrustError("E_STATEMENT", "this is no ledger entry")
    texts = ("prev", "kind", "role", "time_utc")
    if any(not isinstance(found[name], str) for name in texts) or type(found["seq"]) is not int:
        raise TrustError("E_STATEMENT", "a field of the entry has the wrong type")
    if found["role"] not in ROLES or not isinstance(found["body"], dict):
        raise TrustError("E_STATEMENT", "the entry has no known role or no body")
    return Entry(signer=signed.signers[0], sha256=signed.sha256, **found)


def _check_link(entry: Entry, number: int, before: Entry | None) -> None:
    if entry.seq != number:
        raise TrustError("E_CHAIN", f"the entry says it is number {entry.seq}, it stands in place {number}")
    if entry.prev != (before.sha256 if before else FIRST):
        raise TrustError("E_CHAIN", "the entry does not follow from the one before it")
