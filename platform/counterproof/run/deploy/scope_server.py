"""A server that follows the ledger of deployments: it serves a scope's champion, and changes over when that changes.

The engine's server is a process of its own that follows a file; this side watches the ledger, writes the file, and asks
the server which configuration new requests meet. Requests in flight finish on the configuration they began with.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from counterproof.errors import EXIT_OK, CounterproofError, ExecutionError
from counterproof.record.deployment_ledger import DeploymentLedger
from counterproof.record.deployment_state import Served
from counterproof.record.store import Store
from counterproof.run.deploy import change
from counterproof.run.deploy.live_load import parse_ready, serving
from counterproof.run.deploy.private_server import follow_command
from counterproof.run.deploy.served_file import ServedFile
from counterproof.run.targets.http.pool import Address
from intaglio.config import from_flat
from intaglio.config_identity import fingerprint
from intaglio.errors import IntaglioError

LOOK_S = 0.25
LATE_S = 60.0
# Dies with us; in a session of its own, so that Ctrl-C reaches it once, through us.
_LAUNCH = (
    "import os, sys\n"
    "from counterproof.run import orphan\n"
    "orphan.die_with_parent({parent})\n"
    "os.execvpe(sys.argv[1], sys.argv[1:], os.environ)\n"
)


class ScopeServer:
    """One scope of one store, served.

    more   further arguments of `intaglio serve`: host, port, keys, limits
    tell   called with a line for people whenever something changes
    ready  called with the server's own line when it takes requests
    """

    def __init__(
        self,
        store: Store,
        scope: str,
        *,
        baseline: Served | None,
        more: Sequence[str],
        tell: Callable[[str], None],
        ready: Callable[[str], None],
    ) -> None:
        self._store = store
        self._scope = scope
        self._more = list(more)
        self._tell = tell
        self._ready = ready
        folder = store.root / "serving"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{scope}-{os.getpid()}.json"
        self._file = ServedFile(DeploymentLedger(store.root), scope, self._path, baseline=baseline)
        self._address: Address | None = None
        self._awaited: tuple[Served, str, float] | None = None
        self._trouble = ""

    def run(self, stop: threading.Event) -> int:
        """Serve until `stop` is set or the server ends. Returns the server's exit code, 0 after a whole drain.

        Raises EvidenceError when the ledger cannot be believed at the start, ExecutionError for a scope without a
        configuration.
        """
        if self._file.look(_now()) is None or self._file.served is None:
            raise ExecutionError(f"nothing is known to serve the scope {self._scope}")
        self._expect(self._file.served)
        process = self._start()
        try:
            while not stop.wait(LOOK_S):
                code = process.poll()
                if code is not None:
                    return code
                self.look()
            return self._end(process)
        except KeyboardInterrupt:
            self._tell("ending: requests in flight finish; once more to end at once")
            return self._end(process)
        except BaseException:
            self._end(process)
            raise
        finally:
            self._path.unlink(missing_ok=True)

    def look(self) -> None:
        """Follow the ledger once, and check what the server really serves."""
        try:
            changed = self._file.look(_now())
            if changed is not None:
                self._tell(f"the ledger names {_words(changed)}; changing over")
                self._expect(changed)
            if self._file.overdue(_now()):
                change.write_ends(self._store, self._scope)
            self._trouble = ""
        except (CounterproofError, IntaglioError, OSError) as error:
            # A ledger or a disk in trouble is no reason to stop serving; each trouble is told once.
            if str(error) != self._trouble:
                self._tell(f"what runs goes on: {error}")
            self._trouble = str(error)
        self._check()

    def _expect(self, served: Served) -> None:
        self._awaited = (served, fingerprint(from_flat(served.config)), time.monotonic() + LATE_S)

    def _check(self) -> None:
        if self._awaited is None or self._address is None:
            return
        served, wanted, deadline = self._awaited
        seen = serving(self._address)
        if seen == wanted:
            self._tell(f"serving {_words(served)}, configuration {wanted}")
            self._awaited = None
        elif time.monotonic() > deadline:
            self._tell(f"the server still serves {seen}, not {wanted}: see its log above")
            self._awaited = (served, wanted, time.monotonic() + LATE_S)

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-c", _LAUNCH.format(parent=os.getpid())]
        command += follow_command(self._path, *self._more)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """The server says in one line where it listens."""
        for line in process.stdout or ():
            found = parse_ready(line)
            if found is not None and self._address is None:
                host = str(found["host"])
                self._address = Address("127.0.0.1" if host == "0.0.0.0" else host, int(found["port"]))
                self._ready(line.rstrip("\n"))

    def _end(self, process: subprocess.Popen[str]) -> int:
        """Ask it to finish what is in flight; a second interruption ends it at once."""
        process.terminate()
        try:
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            with contextlib.suppress(OSError, AttributeError):
                process.stdout.close()  # type: ignore[union-attr]
        return EXIT_OK if code in (0, -15) else code


def _words(served: Served) -> str:
    return (
        f"{served.study}/{served.arm} (ledger entry {served.seq})"
        if served.seq >= 0
        else f"{served.study}/{served.arm}"
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def remove_stale(folder: Path) -> None:
    """Files of servers that were killed."""
    for path in folder.glob("*.json"):
        pid = path.stem.rpartition("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)
