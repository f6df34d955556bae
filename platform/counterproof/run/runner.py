"""The study loop: every planned run once, in order, each a fresh process, each sealed before the next starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from counterproof.errors import CounterproofError, ExecutionError, RefusedError
from counterproof.plan.compose import engine_of
from counterproof.plan.reserve import EXTENDED, blocks_in_force, next_extent
from counterproof.record import manifest, verify
from counterproof.record.journal import Journal
from counterproof.record.lock import FileLock
from counterproof.record.store import EQUIVALENCE, RunKey, StudyPaths
from counterproof.run import assemble, fanout, guard, places
from counterproof.run.clock_watch import ClockWatch
from counterproof.run.places import Place
from counterproof.run.site import LocalSite, Site
from counterproof.run.spec import RunSpec
from intaglio.config import EngineConfig

# A harness that is killed while it starts a process leaves its locks to that process, which drops them when it has
# become another program: a moment, longer on a busy machine.
LOCK_SECONDS = 5.0


class Progress(Protocol):
    """Who is told how far a study is."""

    def run_started(self, key: RunKey, number: int, total: int) -> None: ...

    def requests_done(self, done: int, total: int) -> None: ...

    def run_ended(self, key: RunKey, note: str) -> None: ...

    def waiting(self, what: str) -> None: ...

    def extended(self, missing: list[Place], reason: str) -> None: ...


class StudyRunner:
    """Executes a registered study. Hold `lock()` while using it: one harness per study.

    Raises EvidenceError at once when plan, journal or a sealed record was tampered with.
    """

    def __init__(self, paths: StudyPaths, progress: Progress, sites: Sequence[Site] = ()) -> None:
        """`sites`: where runs are measured, blocks side by side where there are several; default: this machine."""
        self._paths = paths
        self._progress = progress
        self._journal = Journal(paths.journal)
        self.plan, self._plan_sha256, _ = verify.verify_plan(paths)
        self._sites: Sequence[Site] = sites or (LocalSite(),)
        self._clock = ClockWatch()

    @staticmethod
    def lock(paths: StudyPaths) -> FileLock:
        """At most one harness works on a study."""
        return FileLock(paths.lock, wait_s=LOCK_SECONDS, what=f"the study {paths.name}")

    def recover(self) -> list[str]:
        """Account for attempts that were cut off: a whole record is taken in, anything else is journalled as
        lost and kept. Returns the lost ones. Then verifies everything that is sealed."""
        lost = []
        for name in places.open_attempts(self._journal.events()):
            folder = self._paths.run(RunKey.parse(name))
            if manifest.is_sealed(folder):
                self._journal.append(
                    "run_sealed", run=name, manifest_sha256=manifest.sha256(folder), recovered=True
                )
            else:
                self._journal.append("run_lost", run=name, reason="its process or the harness was killed")
                lost.append(name)
        verify.verify_study(self._paths.folder)
        return lost

    def missing(self) -> list[Place]:
        """Planned runs that have no sealed record, in order."""
        events = self._journal.events()
        sealed = places.done(events)
        return [place for place in places.places(self.plan, events) if place not in sealed]

    def run_missing(
        self,
        after_block: Callable[[int], bool] | None = None,
        extend: Callable[[], str | None] | None = None,
    ) -> None:
        """Run everything that is missing. `after_block(block)` True ends the study early and for good; `extend()`
        is asked at the end for a reason to call up the next reserve blocks.

        Raises what a run raises: RefusedError, SetupError, ExecutionError after the last attempt.
        """
        if any(event["kind"] == "stopped_early" for event in self._journal.events()):
            return
        while True:
            if self._run_in_force(after_block):
                return
            if extend is None or not self._extend(extend):
                return

    def _run_in_force(self, after_block: Callable[[int], bool] | None) -> bool:
        """Run what is missing of the blocks in force. True if the study was stopped early."""
        events = self._journal.events()
        last = blocks_in_force(self.plan, events) - 1
        for wave in fanout.waves(self.missing(), self._sites, events):
            fanout.run_wave(wave, self._journal.events(), self.run_place)
            block = wave[-1].block
            if after_block is None or block in (None, last) or not self._block_is_whole(block):
                continue
            if after_block(block):
                self._journal.append("stopped_early", block=block)
                return True
        return False

    def _extend(self, extend: Callable[[], str | None]) -> bool:
        """Call up the next reserve blocks if there are any and there is a reason."""
        blocks = next_extent(self.plan, blocks_in_force(self.plan, self._journal.events()))
        reason = None if blocks is None else extend()
        if reason is None:
            return False
        self._journal.append(EXTENDED, blocks=blocks, reason=reason)
        self._progress.extended(self.missing(), reason)
        return True

    def run_place(self, place: Place, site: Site | None = None) -> None:
        """Run one place until it is sealed or has failed as often as the plan allows; `site` None: the first one.

        Raises RefusedError for a candidate before its baseline, a place already sealed or not planned.
        """
        events = self._journal.events()
        planned = places.places(self.plan, events)
        if place not in planned:
            raise RefusedError(f"refused: {place} is not in the plan", details=[str(p) for p in planned])
        sealed = places.done(events)
        if place in sealed:
            raise RefusedError(f"refused: {place} has a sealed record, which is never repeated")
        places.refuse_early_candidate(place, sealed)
        site = site or self._sites[0]
        fanout.refuse_other_machine(place.block, site.machine, events)
        allowed = int(self.plan["attempts"])
        while True:
            try:
                self._attempt(place, site)
                return
            except ExecutionError:
                if places.failures(place, self._journal.events()) >= allowed:
                    raise

    def _attempt(self, place: Place, site: Site) -> None:
        engine = self._engine(place.arm)
        common = site.common(self.plan["target"], engine)
        guard.check_common(self.plan, common)
        facts = {"machine": site.machine, "hardware": site.hardware(common)}
        key = places.next_key(place, self._journal.events())
        folder = self._paths.run(key)
        with site.turn(lambda: self._progress.waiting("another measured run on this machine")):
            self._journal.append(
                "run_started", run=key.name, block=key.block, arm=key.arm, attempt=key.attempt, **facts
            )
            planned = places.places(self.plan, self._journal.events())
            self._progress.run_started(key, planned.index(place) + 1, len(planned))
            began = time.monotonic()
            self._note_clock()
            try:
                folder.mkdir(parents=True)
                site.execute(
                    self._spec(place, folder),
                    engine.threads,
                    float(self.plan["run_deadline_s"]),
                    self._progress.requests_done,
                )
                digest = self._seal(key, folder, common)
            except BaseException as error:
                self._record_failure(key, error)
                raise
        seconds = round(time.monotonic() - began, 3)
        self._note_clock()
        self._journal.append("run_sealed", run=key.name, manifest_sha256=digest, seconds=seconds)
        self._progress.run_ended(key, f"sealed after {seconds:.1f} s")

    def _note_clock(self) -> None:
        if (step := self._clock.stepped_s()) is not None:
            self._journal.append("clock_stepped", by_s=round(step, 3))

    def _record_failure(self, key: RunKey, error: BaseException) -> None:
        if manifest.is_sealed(self._paths.run(key)):
            # Cut off after the seal: the record is whole, and `recover` takes it in.
            self._progress.run_ended(key, "sealed just before it was cut off; the next resume takes it in")
            return
        kind = "run_failed"
        if isinstance(error, RefusedError):
            kind = "run_refused"
        elif isinstance(error, KeyboardInterrupt):
            kind = "run_lost"
        reason = str(error) or ("interrupted" if kind == "run_lost" else type(error).__name__)
        details = error.details if isinstance(error, CounterproofError) else []
        self._journal.append(kind, run=key.name, reason=reason, details=details)
        self._progress.run_ended(key, f"{kind.removeprefix('run_')}: {reason}")

    def _seal(self, key: RunKey, folder: Path, common: dict[str, Any]) -> str:
        raw = assemble.read_raw(folder)
        env = assemble.build_environment(raw, common, guard.environment_exceptions(self.plan))
        reference = self._reference(key)
        if reference is not None:
            guard.check_run(key.arm, self.plan, raw.effective, env, reference)
        sha = self._workload(Place.of(key))[1]
        return assemble.write_record(raw, key, self.plan, self._plan_sha256, sha, env)

    def _reference(self, key: RunKey) -> guard.Reference | None:
        """The first sealed baseline of the same phase, None while there is none."""
        for event in self._journal.events():
            if event["kind"] == "run_sealed":
                sealed = RunKey.parse(event["run"])
                if sealed.arm == "baseline" and sealed.phase == key.phase:
                    return guard.Reference.read(self._paths.run(sealed))
        return None

    def _engine(self, arm: str) -> EngineConfig:
        return engine_of(self._arm(arm)["config"])

    def _arm(self, arm: str) -> dict[str, Any]:
        return assemble.arm_of(self.plan, arm)

    def _spec(self, place: Place, folder: Path) -> RunSpec:
        config = self._arm(place.arm)["config"]
        workload, sha = self._workload(place)
        lossless = (self.plan["factor"] or {}).get("lossless") is not False
        equivalence = place.phase == EQUIVALENCE
        judged = equivalence and place.arm == "candidate" and not lossless
        return RunSpec(
            target=self.plan["target"],
            phase=place.phase,
            engine={path[7:]: value for path, value in config.items() if path.startswith("engine.")},
            workload=str(workload),
            workload_sha256=sha,
            warmup=str(self._paths.workloads / "warmup.parquet"),
            warmup_sha256=self.plan["workload"]["warmup_sha256"],
            concurrency=self.plan["workload"]["concurrency"],
            request_timeout_s=self.plan["workload"]["request_timeout_s"],
            folder=str(folder),
            parent_pid=0,
            composition=equivalence and place.arm == "baseline",
            lossless=lossless,
            reference=self._flat_engine("baseline") if judged else None,
            server={path[7:]: value for path, value in config.items() if path.startswith("server.")},
            duplicates=str(self._paths.duplicates_workload),
            duplicates_sha256=self.plan["probes"]["duplicates_sha256"] if place.probe else "",
            abnormal=place.probe and place.arm != places.SABOTAGE,
        )

    def _flat_engine(self, arm: str) -> dict[str, Any]:
        config = self.plan["arms"][arm]["config"]
        return {path[7:]: value for path, value in config.items() if path.startswith("engine.")}

    def _workload(self, place: Place) -> tuple[Path, str]:
        if place.probe:
            return self._paths.probe_workload, self.plan["probes"]["sha256"]
        sha = verify.workload_sha256(self.plan, place.block)
        return self._paths.workload(place.block), sha or ""

    def _block_is_whole(self, block: int) -> bool:
        return not any(place.block == block for place in self.missing())
