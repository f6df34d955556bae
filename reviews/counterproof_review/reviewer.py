"""What the harness asks of this package: does a study's review hold, and who signed an override.

Offered through the entry-point group `counterproof.reviewer`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterproof.decide.deploy.reviewer import Finding, SignedOverride
from counterproof.errors import InputError
from counterproof_review.packet import canonical
from counterproof_review.protocol import folder, lookup
from counterproof_review.trust import dsse
from counterproof_review.trust.errors import TrustError
from counterproof_review.trust.keys import KeyPair

OVERRIDE = "urn:counterproof:override:1"
REGISTRY = "registry.dsse.json"
_TEXTS = ("study", "plan_sha256", "scope", "reason", "expires_utc")


class InstalledReviewer:
    """Checks signatures for the decision rule and for promotions."""

    def finding(self, study: Path) -> Finding:
        """The state of the review beside a study. Raises CounterproofError for one that does not hold."""
        found = lookup.standing_of(study)
        return Finding(found.verdict, found.reason, found.open_counterexamples, found.sha256)

    def override(self, store: Path, file: Path) -> SignedOverride:
        """The override in `file`, every signature checked against the registry of the store.

        Raises TrustError for another form, an unknown or revoked key, or a registry that nobody trusted signed.
        """
        known = folder.read_registry(store / REGISTRY)
        signed = dsse.verify(read_file(file), known.keys)
        found = signed.predicate
        if signed.predicate_type != OVERRIDE or set(found) != {*_TEXTS, "waives"}:
            raise TrustError("E_STATEMENT", "this is no override")
        waives = found["waives"]
        texts = all(isinstance(found[name], str) for name in _TEXTS)
        if not texts or not isinstance(waives, list) or not all(isinstance(one, str) for one in waives):
            raise TrustError("E_STATEMENT", "a field of the override has the wrong type")
        people = [known.entry(signer) for signer in signed.signers]
        for person in people:
            if person.revoked_at is not None:
                raise TrustError("E_KEY_REVOKED", f"the key of {person.name} is revoked")
        return SignedOverride(
            **{name: found[name] for name in _TEXTS},
            waives=tuple(waives),
            signers=tuple(person.name for person in people),
            # Of the content alone: one signature more makes no other override of it.
            sha256=hashlib.sha256(canonical.encode(found)).hexdigest(),
        )


def read_file(file: Path) -> bytes:
    """The bytes of an override. Raises InputError where there are none."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror}",
            details=["to make an override: counterproof override request --help"],
        ) from None


def sign_override(content: Mapping[str, Any], keys: Sequence[KeyPair]) -> bytes:
    """The envelope of an override. `content`: study, plan_sha256, scope, waives, reason, expires_utc.

    keys   key pairs of those who sign at once; others add their signatures with `dsse.countersign`
    """
    subjects = {f"study/{content['study']}": content["plan_sha256"]}
    return dsse.sign(dsse.statement(OVERRIDE, subjects, content), [key.sign for key in keys])
