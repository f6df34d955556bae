"""What one run's process is told, as JSON on its standard input. It is not part of the record: it holds paths."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunSpec:
    """One run.

    engine            flat engine configuration (without the prefix `engine.`)
    workload, warmup  sealed request files with the identities they must have
    spawned_ns        perf_counter_ns just before the process was started: start-up counts from there
    composition       equivalence phase: also measure how much batching moves the baseline's fast logits
    """

    target: str
    phase: str
    engine: dict[str, Any]
    workload: str
    workload_sha256: str
    warmup: str
    warmup_sha256: str
    concurrency: int
    request_timeout_s: float
    folder: str
    parent_pid: int
    spawned_ns: int = 0
    composition: bool = False

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> RunSpec:
        return RunSpec(**json.loads(text))
