"""Registering a study: its folder appears whole, with sealed workloads, plan and the first journal line."""

from __future__ import annotations

import datetime
import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterproof.errors import EvidenceError, InputError
from counterproof.plan import checks, locate, prereg
from counterproof.record import atomic, canonical, code_identity, starts
from counterproof.record.journal import Journal
from counterproof.record.store import Store, StudyPaths
from counterproof.run import roofline
from counterproof.run.targets import registry
from counterproof.workload import build, sealed


@dataclass(frozen=True)
class StudyRequest:
    """What the user asks for. `candidate` replaces the experiment's own; `study` None: a name with the time."""

    experiment: str
    overrides: tuple[str, ...] = ()
    candidate: tuple[str, ...] = ()
    study: str | None = None
    exploratory: bool = False


def register(store: Store, request: StudyRequest) -> StudyPaths:
    """Check everything that can be refused, then write the study's folder. Runs nothing.

    Raises InputError, RefusedError or SetupError; then no trace of the study is left.
    """
    locate.check_experiment(locate.experiments_folder(), request.experiment)
    paths = store.new_study(request.study or default_name(request.experiment))
    if paths.folder.exists():
        raise _taken(paths)
    arms = prereg.compose_arms(request.experiment, request.overrides, request.candidate)
    config = arms.baseline.config
    checks.check(config, exploratory=request.exploratory)
    code = code_identity.identify()
    if not request.exploratory:
        checks.refuse_dirty(code.dirty_files)
    planner = registry.find(config.target).planner(config.engine)
    workloads = build.build(config, planner.encode)
    store.create()
    draft = StudyPaths(store.studies / f".new-{paths.name}-{os.getpid()}")
    try:
        draft.runs.mkdir(parents=True)
        facts = write_workloads(draft, workloads)
        plan = prereg.build(
            paths.name,
            arms,
            workloads,
            facts,
            planner,
            code,
            exploratory=request.exploratory,
            candidates_tried=1 + _tried(store, request.experiment),
            roofline=roofline.known(store),
        )
        digest = atomic.write_json(draft.plan, plan)
        Journal(draft.journal).append(
            "study_started", study=paths.name, plan_sha256=digest, exploratory=request.exploratory
        )
        # Before the study can run: one that is deleted later still shows in the chain.
        starts.append(store.root, paths.name, request.experiment, digest)
        _publish(draft, paths)
    except BaseException:
        shutil.rmtree(draft.folder, ignore_errors=True)
        raise
    atomic.sync_folder(store.studies)
    return paths


def _publish(draft: StudyPaths, paths: StudyPaths) -> None:
    """Give the finished folder its name. Raises InputError when another harness was faster with it."""
    try:
        draft.folder.rename(paths.folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise _taken(paths) from None
        raise


def _taken(paths: StudyPaths) -> InputError:
    return InputError(
        f"there is a study '{paths.name}' already",
        details=[f"to go on with it: counterproof resume {paths.name}", "or choose another --study NAME"],
    )


def write_workloads(paths: StudyPaths, workloads: build.StudyWorkloads) -> dict[str, Any]:
    """Write every workload; returns their identities and the files' hashes as the plan records them."""
    paths.workloads.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {
        "sha256_by_block": [
            sealed.write(paths.workload(block), requests) for block, requests in enumerate(workloads.blocks)
        ],
        "warmup_sha256": sealed.write(paths.workloads / "warmup.parquet", workloads.warmup),
    }
    if workloads.equivalence:
        facts["equivalence_sha256"] = sealed.write(paths.workload(None), workloads.equivalence)
    if workloads.probes:
        facts["probe_sha256"] = sealed.write(paths.probe_workload, workloads.probes)
        facts["duplicates_sha256"] = sealed.write(paths.duplicates_workload, workloads.duplicates)
    facts |= workloads.facts
    files = sorted(paths.workloads.glob("*.parquet"))
    for path in files:
        atomic.sync_file(path)
    facts["files"] = {path.name: canonical.sha256_file(path) for path in files}
    return facts


def default_name(experiment: str) -> str:
    """The experiment's name and the time, e.g. kv_cache-20260102-030405."""
    return f"{experiment}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"


def _tried(store: Store, experiment: str) -> int:
    """How many studies of this experiment were started here: best-of-many looks better than it is.

    The chain of starts tells without reading every plan, and a study that was deleted counts; a plan is read only where
    the chain does not know its study.
    """
    entered = starts.entered(store.root)
    known = {start.study for start in entered}
    others = (folder for folder in store.study_folders() if folder.name not in known)
    return sum(start.experiment == experiment for start in entered) + sum(
        _experiment_of(folder) == experiment for folder in others
    )


def _experiment_of(folder: Path) -> str | None:
    try:
        plan = canonical.read_json(folder / "plan.json")
    except EvidenceError:
        return None
    return plan.get("experiment") if isinstance(plan, dict) else None
