"""From the ledger to the file that a server follows: the configuration of one scope, rewritten when it changes."""

from __future__ import annotations

import datetime
from pathlib import Path

from counterproof.record import atomic
from counterproof.record.deployment_ledger import DeploymentLedger
from counterproof.record.deployment_state import ScopeState, Served, fold

Stamp = tuple[int, int, int]


class ServedFile:
    """Keeps `file` at what the ledger says for a scope.

    baseline  what serves as long as nothing was ever promoted in the scope; None: the scope must be in the ledger
    """

    def __init__(
        self, ledger: DeploymentLedger, scope: str, file: Path, *, baseline: Served | None = None
    ) -> None:
        self._ledger = ledger
        self._scope = scope
        self._file = file
        self._baseline = baseline
        self._seen: Stamp | None = None
        self._state: ScopeState | None = None
        self.served: Served | None = None

    def look(self, now: datetime.datetime) -> Served | None:
        """Write the file if another configuration serves now; returns that one, else None.

        Raises EvidenceError for a ledger that cannot be believed: the file then stays as it is, and the same ledger
        is not read again. Nothing but a file's status is read while the ledger rests.
        """
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            self._state = fold(self._ledger.read()).get(self._scope)
        champion = self._baseline if self._state is None else self._state.champion(now)
        if champion is None or (self.served is not None and champion.seq == self.served.seq):
            return None
        changed = self.served is None or champion.config_sha256 != self.served.config_sha256
        if changed:
            atomic.write_json(self._file, champion.config)
        self.served = champion
        return champion

    def overdue(self, now: datetime.datetime) -> tuple[Served, ...]:
        """Overrides that ended and whose end the ledger does not say yet."""
        return () if self._state is None else self._state.overdue(now)

    def _stamp(self) -> Stamp | None:
        try:
            found = self._ledger.path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
