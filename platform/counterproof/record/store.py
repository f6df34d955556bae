"""Where records live: `$COUNTERPROOF_STORE`, else `./store`. Names and paths, nothing else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from counterproof.errors import InputError, SetupError, did_you_mean

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_RUN = re.compile(r"(?P<block>\d{2,}|eq|probe)-(?P<arm>[a-z][a-z_]*)-(?P<attempt>\d+)")
EQUIVALENCE, TIMED, PROBES = "equivalence", "timed", "probes"


@dataclass(frozen=True)
class RunKey:
    """Which run: its block (None in the equivalence phase and of a probe), arm and attempt (from 1)."""

    block: int | None
    arm: str
    attempt: int
    probe: bool = False

    @property
    def phase(self) -> str:
        if self.probe:
            return PROBES
        return EQUIVALENCE if self.block is None else TIMED

    @property
    def name(self) -> str:
        """The run folder's name, e.g. `00-baseline-1`, `eq-candidate-1` or `probe-sabotage-1`."""
        block = {PROBES: "probe", EQUIVALENCE: "eq"}.get(self.phase) or f"{self.block:02d}"
        return f"{block}-{self.arm}-{self.attempt}"

    @staticmethod
    def is_name(text: str) -> bool:
        """Whether `text` has the form of a run's name."""
        return _RUN.fullmatch(text) is not None

    @staticmethod
    def parse(name: str) -> RunKey:
        """Inverse of `name`. Raises InputError."""
        match = _RUN.fullmatch(name)
        if match is None:
            raise InputError(f"'{name}' is not a run; runs are called e.g. 00-baseline-1 or eq-candidate-1")
        block = int(match["block"]) if match["block"].isdigit() else None
        return RunKey(block, match["arm"], int(match["attempt"]), match["block"] == "probe")


@dataclass(frozen=True)
class StudyPaths:
    """The files of one study."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def plan(self) -> Path:
        return self.folder / "plan.json"

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def workloads(self) -> Path:
        return self.folder / "workloads"

    @property
    def comparison(self) -> Path:
        return self.folder / "comparison.json"

    @property
    def decision(self) -> Path:
        return self.folder / "decision.json"

    @property
    def reports(self) -> tuple[Path, Path]:
        """The report for a browser and the one for a terminal: views of comparison and decision."""
        return self.folder / "report.html", self.folder / "report.md"

    @property
    def lock(self) -> Path:
        return self.folder / ".lock"

    def run(self, key: RunKey) -> Path:
        return self.runs / key.name

    def workload(self, block: int | None) -> Path:
        """The sealed requests of a block, or of the equivalence phase (None)."""
        return self.workloads / ("eq.parquet" if block is None else f"{block:02d}.parquet")

    @property
    def probe_workload(self) -> Path:
        """The sealed requests of another seed."""
        return self.workloads / "probe.parquet"

    @property
    def duplicates_workload(self) -> Path:
        """The sealed requests that a probe sends twice each."""
        return self.workloads / "duplicates.parquet"

    @property
    def failures(self) -> Path:
        """What injected faults did, one line each."""
        return self.folder / "failures.jsonl"

    def run_folders(self) -> list[Path]:
        """Every run folder there is, sealed or not, in name order."""
        if not self.runs.is_dir():
            return []
        return sorted(path for path in self.runs.iterdir() if path.is_dir() and _RUN.fullmatch(path.name))


@dataclass(frozen=True)
class Store:
    """All studies and the views over them."""

    root: Path

    @property
    def studies(self) -> Path:
        return self.root / "studies"

    @property
    def index(self) -> Path:
        return self.root / "index.duckdb"

    @property
    def mlflow_db(self) -> Path:
        return self.root / "mlflow.db"

    @property
    def artifacts(self) -> Path:
        return self.root / "mlartifacts"

    @property
    def views_lock(self) -> Path:
        return self.root / ".views.lock"

    def study(self, name: str) -> StudyPaths:
        """Paths of a study that exists. Raises InputError that lists what there is."""
        paths = self.new_study(name)
        if not paths.plan.is_file():
            known = [path.name for path in self.study_folders()]
            raise InputError(
                f"there is no study '{name}' in {self.root}",
                details=[
                    *did_you_mean(name, known),
                    f"known: {', '.join(known)}" if known else "no study was recorded yet",
                ],
            )
        return paths

    def new_study(self, name: str) -> StudyPaths:
        """Paths of a study that may not exist yet. Raises InputError for a name that is no file name."""
        if not _NAME.fullmatch(name):
            raise InputError(
                f"'{name}' cannot name a study",
                details=["use lower-case letters, digits, '.', '_' and '-', at most 100 of them"],
            )
        return StudyPaths(self.studies / name)

    def study_folders(self) -> list[Path]:
        """Folders of all studies, in name order."""
        if not self.studies.is_dir():
            return []
        # A hidden folder is a registration that was cut off: it was never a study.
        folders = (path for path in self.studies.iterdir() if not path.name.startswith("."))
        return sorted(path for path in folders if (path / "plan.json").is_file())

    def create(self) -> Store:
        """Make the folders. Raises SetupError when the place cannot be written."""
        try:
            self.studies.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(
                f"the store {self.root} cannot be written: {error.strerror}",
                details=["set COUNTERPROOF_STORE to a folder that can"],
            ) from None
        return self


def open_store(root: str | Path | None = None) -> Store:
    """The store at `root`, else `$COUNTERPROOF_STORE`, else `./store`; always an absolute path."""
    place = root or os.environ.get("COUNTERPROOF_STORE") or "store"
    return Store(Path(place).expanduser().absolute())
