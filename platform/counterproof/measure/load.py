"""A verified study in memory: every sealed run's tables, configuration and events, and which blocks are whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import yaml

from counterproof.errors import EvidenceError
from counterproof.measure.latency import Floats, chunked, request_latencies, token_gaps
from counterproof.plan.reserve import blocks_in_force
from counterproof.record.schema import SERVER_TABLES, TABLES
from counterproof.record.verify import SealedRun, VerifiedStudy, verify_study


@dataclass(frozen=True)
class RunData:
    """One sealed run. Tables have the columns of record/schema.py; they are read when first asked for."""

    sealed: SealedRun

    @property
    def name(self) -> str:
        return self.sealed.folder.name

    @property
    def arm(self) -> str:
        return self.sealed.key.arm

    @property
    def block(self) -> int | None:
        return self.sealed.key.block

    @property
    def manifest(self) -> dict[str, Any]:
        return self.sealed.manifest

    @cached_property
    def requests(self) -> pd.DataFrame:
        return self._table("requests.parquet").sort_values("request_index", ignore_index=True)

    @cached_property
    def latencies(self) -> pd.DataFrame:
        """One row per request, by `latency.request_latencies`; a server's answers by `latency.chunked`."""
        found = request_latencies(self.requests)
        return found if self.chunks is None else chunked(found, self.chunks)

    @cached_property
    def token_gaps(self) -> Floats:
        """ITL in ms of all successful requests, by `latency.token_gaps`; none where only chunks were stamped."""
        return token_gaps(self.requests, self.tokens)

    @property
    def remote(self) -> bool:
        """Whether the target was a server: its answers are stamped by chunks, not by tokens."""
        return bool(self.manifest.get("stamps", "token") == "chunk")

    @cached_property
    def chunks(self) -> pd.DataFrame | None:
        """The chunks of a server's answers, None for a target that stamps tokens."""
        if not self.remote:
            return None
        return self._table("chunks.parquet").sort_values(["request_index", "chunk_index"], ignore_index=True)

    @cached_property
    def chunk_gaps(self) -> Floats:
        """Inter-chunk latency in ms of all successful requests; empty for a target that stamps tokens."""
        return np.empty(0) if self.chunks is None else token_gaps(self.requests, self.chunks)

    @cached_property
    def tokens(self) -> pd.DataFrame:
        return self._table("tokens.parquet").sort_values(["request_index", "token_index"], ignore_index=True)

    @cached_property
    def stages(self) -> pd.DataFrame:
        return self._table("stages.parquet")

    @cached_property
    def resources(self) -> pd.DataFrame:
        return self._table("resources.parquet").sort_values("time_ns", ignore_index=True)

    @cached_property
    def effective(self) -> dict[str, Any]:
        """What the engine says it really ran, flat."""
        return _read_yaml(self.sealed.folder / "config" / "effective.yaml")

    @cached_property
    def environment(self) -> dict[str, Any]:
        return _read_object(self.sealed.folder / "environment.json")

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return _read_lines(self.sealed.folder / "events.jsonl")

    @cached_property
    def outputs(self) -> list[dict[str, Any]]:
        """Rows of outputs.jsonl: request_index, token_ids, text."""
        return _read_lines(self.sealed.folder / "outputs.jsonl")

    @cached_property
    def abnormal(self) -> list[dict[str, Any]]:
        """A probe's abnormal inputs, one row each; none in other runs."""
        path = self.sealed.folder / "abnormal.jsonl"
        return _read_lines(path) if path.is_file() else []

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.manifest.get("counters") or {})

    def _table(self, name: str) -> pd.DataFrame:
        path = self.sealed.folder / name
        try:
            table = pq.read_table(path)
        except (OSError, ValueError) as error:
            raise EvidenceError(f"{self.name}/{name} cannot be read: {error}") from None
        names = {**TABLES, **SERVER_TABLES}[name].names
        missing = [column for column in names if column not in table.column_names]
        if missing:
            raise EvidenceError(f"{self.name}/{name} lacks the columns {', '.join(missing)}")
        frame: pd.DataFrame = table.select(names).to_pandas()
        return frame


@dataclass(frozen=True)
class StudyData:
    """The plan, the journal and the sealed runs by (block, arm); `equivalence` holds the untimed phase by arm, and
    `probes` the runs that try to overturn the result."""

    verified: VerifiedStudy
    runs: dict[tuple[int, str], RunData]
    equivalence: dict[str, RunData]
    probes: dict[str, RunData] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.verified.paths.folder

    @property
    def plan(self) -> dict[str, Any]:
        return self.verified.plan

    @property
    def arms(self) -> list[str]:
        """Arms in the plan's order; a calibration study has no candidate."""
        known = ("baseline", "candidate", "again", "slowed")
        return [arm for arm in known if arm in self.plan["arms"]]

    @property
    def planned_blocks(self) -> int:
        """Blocks that the study consists of: those always run, and the reserve blocks called up so far."""
        return blocks_in_force(self.plan, self.verified.journal)

    @cached_property
    def complete_blocks(self) -> list[int]:
        """Blocks in which every arm has a sealed run, in order."""
        blocks = range(self.planned_blocks)
        return [b for b in blocks if all((b, arm) in self.runs for arm in self.arms)]

    @cached_property
    def failures(self) -> list[dict[str, Any]]:
        """What injected faults did, one row each; none where none were injected."""
        path = self.verified.paths.failures
        return _read_lines(path) if path.is_file() else []

    @property
    def final(self) -> bool:
        """Whether every block in force is complete."""
        return len(self.complete_blocks) == self.planned_blocks

    def of(self, arm: str) -> list[RunData]:
        """The arm's runs of the complete blocks, in block order."""
        return [self.runs[(block, arm)] for block in self.complete_blocks]


def load_study(folder: Path) -> StudyData:
    """Verify a study and read it. Raises EvidenceError for anything tampered with or malformed."""
    verified = verify_study(folder)
    runs: dict[tuple[int, str], RunData] = {}
    equivalence: dict[str, RunData] = {}
    probes: dict[str, RunData] = {}
    for sealed in verified.runs:
        if sealed.key.probe:
            probes[sealed.key.arm] = RunData(sealed)
        elif sealed.key.block is None:
            equivalence[sealed.key.arm] = RunData(sealed)
        else:
            runs[(sealed.key.block, sealed.key.arm)] = RunData(sealed)
    return StudyData(verified, runs, equivalence, probes)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise EvidenceError(f"{path.name} of {path.parents[1].name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise EvidenceError(f"{path.name} of {path.parents[1].name} holds no mapping")
    return value


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path.name} of {path.parent.name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise EvidenceError(f"{path.name} of {path.parent.name} holds no object")
    return value


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line]
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path.name} of {path.parent.name} cannot be read: {error}") from None
