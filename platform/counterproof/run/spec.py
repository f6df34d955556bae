"""What one run's process is told, as JSON on its standard input. It is not part of the record: it holds paths."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunSpec:
    """One run.

    engine            flat engine configuration (without the prefix `engine.`)
    workload, warmup  sealed request files with the identities they must have
    spawned_ns        perf_counter_ns just before the process was started: start-up counts from there
    origins           from which folder the harness imports each package: the process must import the same
    server            flat configuration of a server target (without the prefix `server.`); it holds no key
    duplicates        probes: sealed requests that are sent twice each, with their identity
    abnormal          probes: whether the abnormal inputs are sent too
    composition       equivalence phase: also measure how much batching moves the baseline's logits
    lossless          equivalence phase: whether outputs must stay the same; else the phase measures quality
    reference         quality: the baseline's engine configuration, in the candidate's process
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
    lossless: bool = True
    reference: dict[str, Any] | None = None
    server: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    duplicates: str = ""
    duplicates_sha256: str = ""
    abnormal: bool = False

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> RunSpec:
        return RunSpec(**json.loads(text))
