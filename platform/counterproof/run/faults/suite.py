"""All faults, one after the other, and their lines in a study's failures.jsonl."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from counterproof.errors import CounterproofError, InputError
from counterproof.record import atomic, canonical
from counterproof.record.journal import Journal, now_utc
from counterproof.record.store import Store, StudyPaths
from counterproof.run.faults.bench import Bench
from counterproof.run.faults.fault import NOT_APPLICABLE, NOT_RECOVERED, Fault, Outcome

RECORDED = "faults_recorded"


def run_faults(
    faults: Sequence[Fault], bench: Bench, tell: Callable[[Fault, Outcome], None] = lambda *_: None
) -> list[dict[str, Any]]:
    """Let every fault strike; one row each, whatever it does."""
    rows = []
    for fault in faults:
        try:
            outcome = fault.strike(bench)
        except InputError as error:
            outcome = Outcome(NOT_APPLICABLE, f"the experiment cannot be varied for it: {error}")
        except CounterproofError as error:
            outcome = Outcome(NOT_RECOVERED, f"{type(error).__name__}: {error}")
        tell(fault, outcome)
        rows.append({"fault": fault.name, "what": fault.what, "time_utc": now_utc(), **outcome.as_dict()})
    return rows


def record(paths: StudyPaths, rows: Sequence[dict[str, Any]]) -> None:
    """Add the rows to the study's failures.jsonl; the journal seals the whole file first."""
    before = paths.failures.read_bytes() if paths.failures.is_file() else b""
    text = "".join(json.dumps(row, sort_keys=True, allow_nan=False) + "\n" for row in rows)
    data = before + text.encode()
    Journal(paths.journal).append(
        RECORDED, sha256=canonical.sha256_bytes(data), faults={row["fault"]: row["outcome"] for row in rows}
    )
    atomic.write_bytes(paths.failures, data)


def bench_store(store: Store) -> tuple[Store, Callable[[], None]]:
    """A store for a bench beside the studies, and what removes it."""
    folder = Path(tempfile.mkdtemp(prefix=".faults-", dir=store.create().root))
    return Store(folder).create(), lambda: shutil.rmtree(folder, ignore_errors=True)
