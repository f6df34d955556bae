"""A target like the fake one, whose steps have a known length and are stamped as they were meant, not as a busy machine
woke up. Real time passes all the same, so that whoever measures waits for every step.

Beside it lies `timed_target.json`: {"gain": how many times a baseline's step takes a candidate's, "deaf": whether the
delay that a study injects is left out, "noise": every process is slower by a factor of its own, of up to e to this}.
"""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import counterproof_fake_target as fake

from counterproof.run.targets.protocol import Token
from counterproof.workload.sealed import SealedRequest
from intaglio.config import EngineConfig

PREFILL_S = 0.02  # long beside what the client needs for a request
STEP_S = 0.004
JITTER = 0.004
NEAR_NS = 30_000_000_000  # a machine that stood still for less is not what is measured here


class TimedKind(fake.FakeKind):
    """Registered as `timed`."""

    def start(self, engine: EngineConfig) -> fake.FakeTarget:
        return TimedTarget(engine)


class TimedTarget(fake.FakeTarget):
    def __init__(self, engine: EngineConfig) -> None:
        super().__init__(engine)
        self._way: dict[str, Any] = json.loads(Path(__file__).with_name("timed_target.json").read_text())
        self._chance = random.Random(0)
        self._slower = math.exp(random.Random().uniform(0.0, self._way["noise"]))
        self._clock = MeantClock()
        fake.time = self._clock  # type: ignore[attr-defined]

    def add(self, request_id: str, request: SealedRequest) -> None:
        if not self._live:
            self._clock.start()
            # By what is run, not by which run it is: equal arms are equal here, and no A/A gate fails by chance.
            self._chance = random.Random(f"{request.token_ids} {self._engine}")
        super().add(request_id, request)
        self._gauge()

    def step(self) -> list[Token]:
        if self._way["deaf"]:
            self._clock.skip_s = self._engine.inject.step_delay_us / 1e6
        tokens = super().step()
        if not self._live:
            self._gauge()
        return tokens

    def _gauge(self) -> None:
        """A row when work begins and one when none is left, so that pauses count as pauses."""
        fields = {"waiting": 0, "kv_blocks_used": 0, "kv_blocks_total": 0, "kv_bytes_used": 0}
        now = self._clock.perf_counter_ns()
        self._readings.gauges.append(
            {"time_ns": now, "source": "engine", "running": len(self._live), **fields}
        )

    def _step_seconds(self) -> float:
        jitter = math.exp(self._chance.uniform(-JITTER, JITTER))
        if any(not ids for _, ids in self._live.values()):
            return PREFILL_S * self._slower * jitter
        shorter = self._way["gain"] if self._engine.kv_cache.enabled else 1.0
        return STEP_S * self._slower * jitter / shorter


class MeantClock:
    """Stands for the module `time`: a step ends when it was meant to end. `skip_s` is taken off every sleep."""

    def __init__(self) -> None:
        self._meant = 0
        self.skip_s = 0.0

    def start(self) -> None:
        """Work begins after a pause: go by the real clock again."""
        self._meant = time.perf_counter_ns()

    def perf_counter_ns(self) -> int:
        now = time.perf_counter_ns()
        return self._meant if abs(now - self._meant) < NEAR_NS else now

    def sleep(self, seconds: float) -> None:
        self._meant = self.perf_counter_ns() + round((seconds - self.skip_s) * 1e9)
        time.sleep(max(0.0, (self._meant - time.perf_counter_ns()) / 1e9))
