"""Studies as they lie in the store's folders, read and verified, never written and never repaired.

The writer's database is not opened: plan, journal, comparison and decision are files of the study. A study that
cannot be believed is `refused` with the file named, and none of its numbers leaves this module. A field that a
record does not have is None ("not recorded"), never 0.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from counterproof.errors import CounterproofError
from counterproof.record import canonical, journal, manifest
from counterproof.record.store import RunKey, Store, StudyPaths, open_store
from counterproof.record.verify import PLAN_SCHEMA, verify_study
from counterproof_dashboard.liveness import held_by_a_process

RUNNING = "running"
COMPLETE = "complete"
LOST = "lost"
REFUSED = "refused"
OTHER_SCHEMA = "other schema"
STATUSES = (COMPLETE, RUNNING, LOST, REFUSED, OTHER_SCHEMA)

SEALED, FAILED = "sealed", "failed"
_MALFORMED = (CounterproofError, KeyError, TypeError, AttributeError, ValueError, OSError, RecursionError)


@dataclass(frozen=True)
class Run:
    """One run folder or journalled attempt. `state`: sealed, running, lost or failed."""

    name: str
    folder: Path
    block: int | None
    arm: str
    attempt: int
    state: str

    @property
    def timed(self) -> bool:
        return self.block is not None


@dataclass(frozen=True)
class Study:
    """One study. `problems` say in words why it is refused or what is not there, each with the file's name."""

    name: str
    folder: Path
    status: str
    problems: tuple[str, ...] = ()
    plan: dict[str, Any] = field(default_factory=dict)
    comparison: dict[str, Any] = field(default_factory=dict)
    decision: dict[str, Any] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()

    @property
    def compared(self) -> bool:
        """Whether there are numbers to show: verified, and the comparison is there."""
        return self.status in {COMPLETE, RUNNING, LOST} and bool(self.comparison)

    def sealed(self, arm: str | None = None) -> list[Run]:
        """Sealed timed runs, in block order."""
        found = [r for r in self.runs if r.state == SEALED and r.timed and arm in (None, r.arm)]
        return sorted(found, key=lambda run: (run.block or 0, run.arm))

    def in_state(self, state: str) -> int:
        """How many runs of the timed blocks and the equivalence phase are in `state`."""
        return sum(run.state == state for run in self.runs)


def store_of(root: str | Path | None = None) -> Store:
    """The store that the dashboard reads: `root`, else $COUNTERPROOF_STORE, else ./store."""
    return open_store(root)


def study_names(store: Store) -> list[str]:
    """Every folder under `studies`, newest name first, whatever is in it; hidden folders are not studies."""
    try:
        found = [entry.name for entry in os.scandir(store.studies) if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return sorted((name for name in found if not name.startswith(".")), reverse=True)


def fingerprint(store: Store, name: str) -> str:
    """A key that changes whenever a file of the study changes: names, sizes and times of all, and the
    journal's last line, whose hash stands for everything the study has announced."""
    folder = store.studies / name
    digest = hashlib.sha256()
    for line in sorted(_stats(folder, "")):
        digest.update(line.encode("utf-8", "surrogateescape"))
    digest.update(_tail(folder / journal.FILE_NAME))
    digest.update(str(held_by_a_process(StudyPaths(folder).lock)).encode())
    return digest.hexdigest()


def _stats(folder: Path, inside: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        name = f"{inside}{entry.name}"
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _stats(folder / entry.name, f"{name}/")
                continue
            stat = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        yield f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}\n"


def _tail(path: Path, most: int = 4096) -> bytes:
    try:
        with path.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - most))
            return stream.read()
    except OSError:
        return b""


def read_study(store: Store, name: str) -> Study:
    """The study called `name`, which must be one of `study_names`. Never raises for what is in the folder."""
    folder = store.studies / name
    paths = StudyPaths(folder)
    running = held_by_a_process(paths.lock)
    if not paths.plan.is_file():
        status = RUNNING if running else LOST
        return Study(name, folder, status, ("plan.json is not there: the study never started",))
    try:
        plan = _object(paths.plan)
    except _MALFORMED as error:
        return Study(name, folder, REFUSED, _reasons(error))
    if plan.get("schema") != PLAN_SCHEMA:
        return _other_schema(name, folder, plan)
    return _current(paths, plan, running)


def _other_schema(name: str, folder: Path, plan: dict[str, Any]) -> Study:
    """Facts of the plan only: what this version cannot verify gives no number and no verdict."""
    schema = plan.get("schema", "none")
    reason = f"plan.json has schema {schema!s:.60}, not {PLAN_SCHEMA}: its evidence is not verified here"
    return Study(name, folder, OTHER_SCHEMA, (reason,), plan=plan)


def _current(paths: StudyPaths, plan: dict[str, Any], running: bool) -> Study:
    study = Study(paths.name, paths.folder, RUNNING if running else LOST, plan=plan)
    try:
        if not running:
            # A study that is being written may seal a run between two looks; it is verified once it rests.
            verify_study(paths.folder)
        study = replace(study, runs=tuple(_runs(paths, running)))
        if running:
            return study
        comparison = _object(paths.comparison) if paths.comparison.is_file() else {}
        decision = _object(paths.decision) if paths.decision.is_file() else {}
    except _MALFORMED as error:
        return Study(paths.name, paths.folder, REFUSED, _reasons(error), plan=_names_only(plan))
    if changed := _runs_changed_since(study, comparison):
        return Study(paths.name, paths.folder, REFUSED, changed, plan=_names_only(plan))
    # A judgement in between, of a study that has blocks left, is not its end.
    ended = bool(comparison and decision) and decision.get("decision") != "CONTINUE"
    status = COMPLETE if ended else LOST
    return replace(study, status=status, comparison=comparison, decision=decision)


def _names_only(plan: dict[str, Any]) -> dict[str, Any]:
    """What of a refused study still helps to find it."""
    return {key: plan[key] for key in ("experiment", "created_utc") if key in plan}


def _object(path: Path) -> dict[str, Any]:
    found = canonical.read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return found


def _reasons(error: BaseException) -> tuple[str, ...]:
    details = getattr(error, "details", None)
    if isinstance(error, KeyError):
        return (f"a record lacks the field {error}",)
    message = str(error) or type(error).__name__
    listed = [str(detail) for detail in details or []]
    # The message often begins with the first detail; said once is enough.
    return tuple(dict.fromkeys([message, *(detail for detail in listed if not message.startswith(detail))]))


def _runs(paths: StudyPaths, running: bool) -> Iterator[Run]:
    """Every attempt that the journal or a folder knows of."""
    states: dict[str, str] = {path.name: RUNNING if running else LOST for path in paths.run_folders()}
    named = {
        "run_started": RUNNING if running else LOST,
        "run_lost": LOST,
        "run_failed": FAILED,
        "run_sealed": SEALED,
    }
    for event in journal.read(paths.journal).events:
        if event["kind"] in named and isinstance(event.get("run"), str):
            states[event["run"]] = named[event["kind"]]
    for name, state in sorted(states.items()):
        key = RunKey.parse(name)
        yield Run(name, paths.runs / name, key.block, key.arm, key.attempt, state)


def _runs_changed_since(study: Study, comparison: dict[str, Any]) -> tuple[str, ...]:
    """A comparison counts only for the very records it was made from."""
    compared = comparison.get("runs")
    if not isinstance(compared, list):
        return ()
    wrong = []
    for entry in compared:
        name, expected = str(entry.get("run")), entry.get("manifest_sha256")
        folder = study.folder / "runs" / name
        if not manifest.is_sealed(folder):
            wrong.append(f"comparison.json rests on {name}, which has no manifest.json")
        elif manifest.sha256(folder) != expected:
            wrong.append(f"{name}/manifest.json is not the one that comparison.json was made from")
    return tuple(wrong)
