"""A target without a model, for tests of the harness: deterministic tokens, real times, and faults on demand.

It is found through the entry-point group `counterproof.targets`, as any other target would be. Which fault it
shows is read from the variable COUNTERPROOF_FAKE: JSON such as {"crash": "candidate"} or {"hang": true}. The
candidate is recognised by `kv_cache.enabled`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from counterproof.errors import SetupError
from counterproof.run.targets.protocol import Logits, Output, Readings, RefusedRequestError, Token
from counterproof.workload.sealed import SealedRequest
from intaglio.config import EngineConfig, flatten
from intaglio.config_sabotage import in_force

VOCABULARY = 50
STEP_SECONDS = 0.0005
SLOW_SECONDS = 0.004
MODEL_LEN = 4096


class FakeKind:
    """Registered as `fake`."""

    def planner(self, engine: EngineConfig) -> FakePlanner:
        if engine.model == "absent":
            raise SetupError("the model 'absent' is not there", details=["choose another"])
        return FakePlanner(engine)

    def start(self, engine: EngineConfig) -> FakeTarget:
        return FakeTarget(engine)


class FakePlanner:
    def __init__(self, engine: EngineConfig) -> None:
        self._engine = engine

    def encode(self, text: str) -> list[int]:
        return [sum(word.encode()) % 40_000 for word in text.split()]

    def model_identity(self) -> dict[str, str]:
        salt = os.environ.get("COUNTERPROOF_FAKE_MODEL", "")
        return {"weights_sha256": hashlib.sha256(f"{self._engine.model}{salt}".encode()).hexdigest()}

    def kv_bytes_per_token(self) -> int:
        return 64


class FakeTarget:
    def __init__(self, engine: EngineConfig) -> None:
        self._fault: dict[str, Any] = json.loads(os.environ.get("COUNTERPROOF_FAKE", "{}"))
        self._arm = "candidate" if engine.kv_cache.enabled else "baseline"
        self._engine = in_force(engine)
        self._seen: set[tuple[int, ...]] = set()
        self._live: dict[str, tuple[SealedRequest, list[int]]] = {}
        self._done: dict[str, Output] = {}
        self._readings = Readings()
        self._counters = {"tokens_computed": 0, "steps": 0, "tokens_generated": 0}
        self._ending: list[Token] = []
        if "pids" in self._fault:
            with open(self._fault["pids"], "a", encoding="utf-8") as told:
                told.write(f"{os.getpid()}\n")

    def add(self, request_id: str, request: SealedRequest) -> None:
        if self._fault.get("refuse") == request.request_index:
            raise RefusedRequestError("kv_capacity: it can never fit")
        if self._fault.get("dies_of_empty") == self._arm and not request.token_ids:
            raise MemoryError("nobody thought of that")
        _check(request)
        if request_id in self._live:
            raise RefusedRequestError("duplicate_request: that id is live")
        self._live[request_id] = (request, [])

    def step(self) -> list[Token]:
        self._show_faults()
        begin = time.perf_counter_ns()
        time.sleep(self._step_seconds() + self._engine.inject.step_delay_us / 1e6)
        self._counters["steps"] += 1
        tokens, self._ending = self._ending, []
        now = time.perf_counter_ns()
        gauge = {"running": len(self._live), "waiting": 0, "kv_blocks_used": 0, "kv_blocks_total": 0}
        self._readings.gauges.append({"time_ns": now, "source": "engine", "kv_bytes_used": 0, **gauge})
        for request_id, (request, ids) in list(self._live.items()):
            first = not ids
            self._seen.add(request.token_ids)
            damaged = self._fault.get("damages") == self._arm and len(self._live) > 1
            ids.append(next_token(request, len(ids)) + damaged)
            cached = self._engine.kv_cache.enabled and not first
            computed = 1 if cached else len(request.token_ids) + len(ids) - 1
            self._counters["tokens_computed"] += computed
            self._counters["tokens_generated"] += 1
            end = "length" if len(ids) == self._wanted(request) else None
            tokens.append(Token(request_id, len(ids) - 1, ids[-1], now, -0.5, 1.5, end))
            self._readings.stages.append(
                {
                    "request_id": request_id,
                    "step": self._counters["steps"],
                    "stage": "compute",
                    "phase": "prefill" if first else "decode",
                    "start_ns": begin,
                    "wall_ns": now - begin,
                    "share_ns": (now - begin) // len(self._live),
                    "tokens": computed,
                    "bytes": 0,
                    "flops": 0,
                }
            )
            if end:
                del self._live[request_id]
                self._done[request_id] = _output(request_id, ids, "length", now)
        return tokens

    def output(self, request_id: str) -> Output:
        return self._done.pop(request_id)

    def abort(self, request_id: str) -> None:
        _, ids = self._live.pop(request_id)
        now = time.perf_counter_ns()
        self._done[request_id] = _output(request_id, ids, "abort", now)
        self._ending.append(Token(request_id, len(ids), None, now, finish_reason="abort"))

    def compute_logits(self, requests: Sequence[SealedRequest]) -> list[Logits]:
        results = []
        for request in requests:
            began = time.perf_counter_ns()
            ids = [next_token(request, i) for i in range(request.max_new_tokens)]
            rows = np.stack([_logits(request, i, self._noise(len(requests))) for i in range(len(ids))])
            stamps = tuple(time.perf_counter_ns() for _ in ids)
            output = _output("x", ids, "length", stamps[-1])
            results.append(Logits(output, began, stamps, (-0.5,) * len(ids), (1.5,) * len(ids), rows))
        return results

    def effective_config(self) -> dict[str, Any]:
        values: dict[str, Any] = dict(flatten(self._engine))
        values["kv_cache.blocks"] = 8 if self._engine.kv_cache.enabled else 0
        values["kernel_path"] = "fake"
        values["scheduler.max_model_len"] = MODEL_LEN
        if self._fault.get("ignore_factor"):
            values["kv_cache.enabled"] = False
        if self._arm == "candidate":
            values.update(self._fault.get("candidate_effective", {}))
        return values

    def identity(self) -> dict[str, Any]:
        fields = {"threads.count": 1, "kernel_path": "fake"}
        if self._arm == "candidate":
            fields.update(self._fault.get("candidate_identity", {}))
        return fields

    def counters(self) -> dict[str, int]:
        return dict(self._counters)

    def drain(self) -> Readings:
        readings, self._readings = self._readings, Readings()
        return readings

    def close(self) -> None:
        self._live.clear()

    def _step_seconds(self) -> float:
        """{"gain": "feature"}: quicker with the feature in force; "elsewhere": quicker as it is configured, feature
        or not. {"hidden_cache": arm}: a prompt that came before has its first token at once."""
        gain = self._fault.get("gain")
        quick = self._engine.kv_cache.enabled if gain == "feature" else self._arm == "candidate"
        seconds = STEP_SECONDS if gain is None else SLOW_SECONDS / (4 if quick else 1)
        known = self._live and all(r.token_ids in self._seen and not ids for r, ids in self._live.values())
        return seconds / 20 if known and self._fault.get("hidden_cache") == self._arm else seconds

    def _wanted(self, request: SealedRequest) -> int:
        short = self._fault.get("short") == self._arm
        return max(1, request.max_new_tokens * 3 // 4) if short else request.max_new_tokens

    def _noise(self, together: int) -> float:
        """Fast mode rounds differently in company; invariant mode does not."""
        fast = self._engine.numerics.mode != "invariant"
        lossy = self._arm == "candidate" and bool(self._fault.get("lossy"))
        return (0.25 if fast and together > 1 else 0.0) + (1.0 if lossy else 0.0)

    def _show_faults(self) -> None:
        if self._fault.get("hang"):
            time.sleep(3600)
        if self._fault.get("crash") == self._arm:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault.get("exit") == self._arm:
            sys.exit(0)
        if self._fault.get("vanish") == self._arm:
            os._exit(0)
        if self._fault.get("raise") == self._arm:
            raise RuntimeError("a fault on demand")


def _check(request: SealedRequest) -> None:
    """What a request must not be; the ids of the planner reach to 40,000."""
    if not request.token_ids:
        raise RefusedRequestError("empty_prompt: give at least one token")
    if not all(0 <= i < 40_000 for i in request.token_ids):
        raise RefusedRequestError("token_out_of_range: no such token")
    if not (math.isfinite(request.temperature) and request.temperature >= 0 and request.top_p > 0):
        raise RefusedRequestError("sampling_params: out of range")
    if not 1 <= request.max_new_tokens <= MODEL_LEN - len(request.token_ids):
        raise RefusedRequestError("prompt_too_long: it does not fit")


def next_token(request: SealedRequest, position: int) -> int:
    """The token of a request at a position: a hash, so that it depends on nothing else."""
    digest = hashlib.sha256(f"{request.token_ids}/{position}".encode()).digest()
    return digest[0] % VOCABULARY


def _logits(request: SealedRequest, position: int, noise: float) -> np.ndarray[Any, Any]:
    row = np.zeros(VOCABULARY, np.float32)
    row[next_token(request, position)] = 3.0 + noise
    return row


def _output(request_id: str, ids: list[int], reason: str, done_ns: int) -> Output:
    text = " ".join(map(str, ids))
    return Output(request_id, tuple(ids), text, reason, done_ns, tokens_computed=len(ids), cached_tokens=0)
