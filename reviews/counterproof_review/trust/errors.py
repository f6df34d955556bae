"""The one error of keys, signatures, seals and ledgers. Its code is stable and names the rule that was broken."""

from __future__ import annotations

from counterproof.errors import EXIT_INPUT, EXIT_INVALID, EXIT_SETUP, CounterproofError

_EXIT = {
    "E_KEY_FILE": EXIT_SETUP,  # a key file is missing, unreadable, or readable by others
    "E_KEY_PLACE": EXIT_SETUP,  # keys would lie inside a repository
    "E_KEY_NAME": EXIT_INPUT,
    "E_KEY_UNKNOWN": EXIT_INVALID,  # not in the registry
    "E_KEY_REVOKED": EXIT_INVALID,
    "E_ROLE": EXIT_INVALID,  # a key signs what its role may not
    "E_INDEPENDENCE": EXIT_INVALID,  # reviewer and author are not different people
    "E_SIGNATURE": EXIT_INVALID,
    "E_ENVELOPE": EXIT_INVALID,  # an envelope is not in the one form that is accepted
    "E_STATEMENT": EXIT_INVALID,
    "E_REGISTRY": EXIT_INVALID,
    "E_CHAIN": EXIT_INVALID,  # an entry does not follow from the one before it
    "E_TRUNCATED": EXIT_INVALID,  # the ledger ends before a head that was witnessed
    "E_FORK": EXIT_INVALID,  # two entries stand in one place
    "E_COMMIT": EXIT_INVALID,  # what was opened is not what was sealed
    "E_SEAL": EXIT_INVALID,
    "E_ESCROW": EXIT_INVALID,
    "E_LOST": EXIT_INVALID,  # nobody holds the key any more
    "E_PROTOCOL": EXIT_INPUT,  # a step is not due
}


class TrustError(CounterproofError):
    """Something signed, sealed or chained is refused. `code` names the rule; `exit_code` follows from it."""

    def __init__(self, code: str, message: str, *, details: list[str] | None = None) -> None:
        super().__init__(f"{code}: {message}", details=details)
        self.code = code
        self.exit_code = _EXIT[code]
