"""Is a study what it was when it was recorded? Everything that draws a conclusion asks here first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import EvidenceError
from counterproof.record import canonical, hardware, journal, manifest
from counterproof.record.store import RunKey, StudyPaths

PLAN_SCHEMA = "counterproof-plan/1"


@dataclass(frozen=True)
class SealedRun:
    """One record whose every byte was checked."""

    key: RunKey
    folder: Path
    manifest: dict[str, Any]
    manifest_sha256: str


@dataclass(frozen=True)
class VerifiedStudy:
    """A study whose plan, journal and records agree. `runs`: in the order in which they were sealed."""

    paths: StudyPaths
    plan: dict[str, Any]
    plan_sha256: str
    journal: tuple[dict[str, Any], ...]
    journal_head: str
    runs: tuple[SealedRun, ...]

    def run(self, block: int | None, arm: str) -> SealedRun | None:
        """The sealed run of one place in the schedule, if there is one; no probe."""
        for run in self.runs:
            if run.key.block == block and run.key.arm == arm and not run.key.probe:
                return run
        return None


def verify_study(folder: Path) -> VerifiedStudy:
    """Check plan, journal chain, workloads and every sealed run.

    Raises EvidenceError whose message and details name each file that is missing, added or changed.
    """
    paths = StudyPaths(folder)
    plan, plan_sha256, content = verify_plan(paths)
    sealed = {event["run"]: event for event in content.events if event["kind"] == "run_sealed"}
    _check_folders(paths, set(sealed))
    runs = [verify_run(paths, name, plan, plan_sha256, event) for name, event in sealed.items()]
    _check_places(runs)
    _check_workloads(paths, plan)
    hardware.check(content.events)
    check_outcome(paths, content.events)
    return VerifiedStudy(paths, plan, plan_sha256, content.events, content.head, tuple(runs))


def verify_plan(paths: StudyPaths) -> tuple[dict[str, Any], str, journal.JournalContent]:
    """The plan, its sha256 and the journal that announced it. Raises EvidenceError."""
    content = journal.read(paths.journal)
    plan = canonical.read_json(paths.plan)
    if not isinstance(plan, dict) or plan.get("schema") != PLAN_SCHEMA:
        raise EvidenceError(f"plan.json of {paths.name} is not of schema {PLAN_SCHEMA}")
    plan_sha256 = canonical.sha256_file(paths.plan)
    started = [event for event in content.events if event["kind"] == "study_started"]
    if len(started) != 1 or content.events[0] is not started[0]:
        raise EvidenceError(f"journal.jsonl of {paths.name} does not begin with exactly one study_started")
    if started[0]["plan_sha256"] != plan_sha256:
        raise EvidenceError(
            f"plan.json of {paths.name} was changed after the study started",
            details=[f"registered {started[0]['plan_sha256']}", f"found {plan_sha256}"],
        )
    if plan.get("study") != paths.name:
        # A copy under another name would count one piece of evidence twice.
        raise EvidenceError(
            f"{paths.name} holds the record of study {plan.get('study')!r}; keep a study under its own name"
        )
    return plan, plan_sha256, content


def verify_run(
    paths: StudyPaths, name: str, plan: dict[str, Any], plan_sha256: str, event: dict[str, Any]
) -> SealedRun:
    """Check one record against its journal event, its manifest and the plan. Raises EvidenceError."""
    key = RunKey.parse(name)
    folder = paths.run(key)
    if not manifest.is_sealed(folder):
        raise EvidenceError(f"{name} was sealed, but its manifest.json is missing now")
    digest = manifest.sha256(folder)
    if digest != event["manifest_sha256"]:
        raise EvidenceError(f"{name}/manifest.json was changed after the record was sealed")
    content = manifest.read(folder)
    expected = {
        "study": plan["study"],
        "block": key.block,
        "arm": key.arm,
        "attempt": key.attempt,
        "phase": key.phase,
        "plan_sha256": plan_sha256,
    }
    registered = plan["probes"]["sha256"] if key.probe else workload_sha256(plan, key.block)
    if registered is not None:
        expected["workload_sha256"] = registered
    for field, value in expected.items():
        if content.get(field) != value:
            raise EvidenceError(
                f"{name}/manifest.json contradicts the study: {field} is {content.get(field)!r}, not {value!r}"
            )
    manifest.check_files(folder, content)
    return SealedRun(key, folder, content, digest)


def workload_sha256(plan: dict[str, Any], block: int | None) -> str | None:
    """The registered hash of a block's requests, or of the equivalence phase (block None; None if the plan
    has no such phase). Raises EvidenceError for a block that is not planned."""
    workload = plan["workload"]
    if block is None:
        registered: str | None = workload.get("equivalence_sha256")
        return registered
    by_block: list[str] = workload["sha256_by_block"]
    if block >= len(by_block):
        raise EvidenceError(f"block {block} is not in the plan, which has {len(by_block)}")
    return by_block[block]


def _check_folders(paths: StudyPaths, sealed: set[str]) -> None:
    for folder in paths.run_folders():
        if manifest.is_sealed(folder) and folder.name not in sealed:
            raise EvidenceError(
                f"{folder.name} has a manifest, but the journal does not know it",
                details=[f"if the harness was killed at that moment: counterproof resume {paths.name}"],
            )


def _check_places(runs: list[SealedRun]) -> None:
    places = [(run.key.block, run.key.arm, run.key.probe) for run in runs]
    for place in places:
        if places.count(place) > 1:
            raise EvidenceError(f"block {place[0]} has more than one sealed run of arm {place[1]}")


def _check_workloads(paths: StudyPaths, plan: dict[str, Any]) -> None:
    files: dict[str, str] = plan["workload"].get("files", {})
    for name, registered in files.items():
        path = paths.workloads / name
        if not path.is_file():
            raise EvidenceError(f"workloads/{name} is missing")
        if canonical.sha256_file(path) != registered:
            raise EvidenceError(f"workloads/{name} was changed after the study started")


def check_outcome(paths: StudyPaths, events: tuple[dict[str, Any], ...]) -> None:
    """Raise EvidenceError for a comparison, decision, report or failures that are not what the journal says.

    A missing one is no fault: it can be made again from the records.
    """
    last = {event["kind"]: event for event in events}
    written = (
        ("compared", paths.comparison),
        ("decided", paths.decision),
        ("faults_recorded", paths.failures),
    )
    for kind, path in written:
        if path.is_file():
            _check_written(paths, path, last[kind]["sha256"] if kind in last else None)
    reported = last.get("reported")
    if reported is None or reported["seq"] < last["decided"]["seq"]:
        # Cut off between writing the reports and saying so.
        return
    for path in paths.reports:
        if path.is_file():
            _check_written(paths, path, reported["files"].get(path.name))


def _check_written(paths: StudyPaths, path: Path, registered: str | None) -> None:
    if registered is None:
        raise EvidenceError(f"{path.name} of {paths.name} was not written by the harness: no event names it")
    if canonical.sha256_file(path) != registered:
        raise EvidenceError(
            f"{path.name} of {paths.name} was changed after it was written",
            details=[f"to make it anew from the records: delete it, then counterproof report {paths.name}"],
        )
