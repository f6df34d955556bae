"""One rank's executor: weights, KV store and sampler behind two plain records, StepPlan in and StepResult out.

A worker never schedules. What is wrong with one row becomes that row's error; what breaks the step raises WorkerError.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import torch

from intaglio.compute.accounting import CostModel
from intaglio.compute.backend import load_backend
from intaglio.compute.spec import read_spec
from intaglio.config import EngineConfig
from intaglio.errors import ConfigError, WorkerError
from intaglio.intake.step_plan import MoveResult, RowPlan, RowResult, SampleSpec, StepPlan, StepResult
from intaglio.output.sampler import Choice
from intaglio.state.block_mover import BlockMover
from intaglio.state.copy_stream import device_stream
from intaglio.state.kv_codec import code_type
from intaglio.state.kv_store import KVStore, PoolGroup

_TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Description = dict[str, str | int | tuple[int, ...] | None]


class Worker:
    """Loads `model_folder` as `config` says. Raises ModelError, ConfigError, or NumericsError when invariant
    mode fails its self-test on this machine.

    known_tokens: ids from there on are rows that only pad the vocabulary and are never chosen; None: there are none.
    """

    def __init__(self, config: EngineConfig, model_folder: Path, *, known_tokens: int | None = None) -> None:
        self._config = config
        self._device = _device(config)
        self._on_gpu = self._device.type == "cuda"
        self._threads = threads = config.threads.count or _usable_cores()
        torch.set_num_threads(threads)
        dtype = _TORCH_DTYPES[config.dtype]
        kv_dtype = dtype if config.kv_cache.format == "auto" else code_type(config.kv_cache.format)
        self._spec = read_spec(model_folder)
        self._known_tokens = min(known_tokens or self._spec.vocab, self._spec.vocab)
        self._costs = CostModel(self._spec)
        with torch.inference_mode():
            self._backend, self._fallback = load_backend(
                config.numerics.mode,
                model_folder,
                self._spec,
                dtype,
                kv_dtype,
                self._device,
                threads,
                config.weights.format,
            )
        self._pool = PoolGroup(self._spec.layers, self._spec.kv_heads, self._spec.head_dim, kv_dtype)
        self._store: KVStore | None = None
        self._mover: BlockMover | None = None

    @property
    def mover(self) -> BlockMover | None:
        """What executes block moves, after configure_kv; None without a cache."""
        return self._mover

    @property
    def store(self) -> KVStore | None:
        """The KV store after configure_kv; None without a cache."""
        return self._store

    def describe(self) -> Description:
        """Facts about what was loaded, plain values. Tuples hold one value per pool group."""
        spec = self._spec
        return {
            "architecture": spec.family,
            "layers": spec.layers,
            "hidden": spec.hidden,
            "heads": spec.heads,
            "kv_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "vocab_size": spec.vocab,
            "max_positions": spec.max_positions,
            "parameters": self._backend.parameters,
            "weight_bytes": self._backend.weight_bytes,
            "eos_token_ids": spec.eos_token_ids,
            "bos_token_id": spec.bos_token_id,
            "kv_format": self._pool.codec.format.name,
            "kv_bytes_per_token": (self._pool.bytes_per_token,),
            "kv_blocks_fit": self._blocks_fit(),
            "kernel_path": self._backend.path,
            "numerics_mode": self._backend.mode,
            "fallback": self._fallback,
            "threads": self._threads,
            "torch": torch.__version__,
        }

    def configure_kv(self, blocks: int) -> None:
        """Allocate the KV store with `blocks` blocks. Raises ConfigError if the cache is off or memory lacks."""
        if not self._config.kv_cache.enabled:
            raise ConfigError(
                "kv_cache.enabled is false, so there is no store to size", field="kv_cache.enabled"
            )
        try:
            self._store = KVStore(self._pool, blocks, self._config.kv_cache.block_tokens, self._device)
            self._mover = self._make_mover(self._store)
        except (RuntimeError, MemoryError) as error:
            raise ConfigError(
                f"{blocks} KV blocks and the host tier do not fit into memory; lower kv_cache.blocks, "
                "kv_cache.memory_mib or host_tier.memory_mib",
                field="kv_cache.blocks",
            ) from error
        self._backend.adopt(self._store)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. Row order of the result is the plan's. Raises WorkerError if the step as a whole failed."""
        began = time.perf_counter_ns()
        if plan.use_cache and self._store is None:
            raise WorkerError("the plan uses a KV cache but none was configured; call configure_kv first")
        # Before any row claims a block: what a block held is read out under the generation it was written under.
        if plan.moves and self._mover is not None:
            self._mover.start(plan.moves)
        moved_ns = time.perf_counter_ns() - began
        began += moved_ns
        errors = self._refusals(plan)
        rows = tuple(row for row in plan.rows if not errors[row.request_id])
        store = self._store if plan.use_cache else None
        try:
            logits, events = self._forward(rows, store)
            computed = time.perf_counter_ns()
            results = self._choose(rows, logits)
        except (RuntimeError, MemoryError) as error:
            self._finish_moves(plan)
            raise WorkerError(f"step {plan.step} failed in the model: {error}") from error
        ended = time.perf_counter_ns()
        moved = self._finish_moves(plan)
        moved_ns += time.perf_counter_ns() - ended
        cost = self._costs.step(rows, self._pool.bytes_per_token if store is not None else 0)
        refused = {rid: RowResult(rid, error=text) for rid, text in errors.items() if text}
        return StepResult(
            step=plan.step,
            digest=plan.digest(),
            rows=tuple(refused.get(row.request_id) or results[row.request_id] for row in plan.rows),
            spans=(
                *((("move", began - moved_ns, moved_ns),) if moved else ()),
                ("forward", began, computed - began),
                ("sample", computed, ended - computed),
            ),
            moved=moved,
            events=events,
            tokens_computed=cost.tokens,
            flops=cost.flops,
            kv_bytes_written=cost.kv_bytes_written,
            kv_bytes_read=cost.kv_bytes_read,
        )

    def device_memory(self) -> dict[str, int]:
        """Most bytes that torch's allocator had handed out and held since the last call; {} on a CPU, which has none."""
        if not self._on_gpu:
            return {}
        peaks = {
            "gpu_allocated_bytes": torch.cuda.max_memory_allocated(self._device),
            "gpu_reserved_bytes": torch.cuda.max_memory_reserved(self._device),
        }
        torch.cuda.reset_peak_memory_stats(self._device)
        return peaks

    def close(self) -> None:
        """Drop the KV store and stop the kernels' threads. The worker cannot execute steps afterwards."""
        self._store = self._mover = None
        self._backend.close()

    def _finish_moves(self, plan: StepPlan) -> tuple[MoveResult, ...]:
        return self._mover.finish() if plan.moves and self._mover is not None else ()

    def _make_mover(self, store: KVStore) -> BlockMover:
        """On a device with streams copies run beside the computation, from and to pinned memory."""
        slots = self._host_slots()
        if self._device.type == "cpu":
            return BlockMover([store], slots)
        return BlockMover([store], slots, stream=device_stream(self._device), pinned=slots > 0)

    def _host_slots(self) -> int:
        """Blocks that the host tier holds."""
        if not self._config.host_tier.enabled:
            return 0
        block_bytes = self._pool.bytes_per_token * self._config.kv_cache.block_tokens
        return (self._config.host_tier.memory_mib << 20) // block_bytes

    def _blocks_fit(self) -> int:
        if not self._config.kv_cache.enabled:
            return 0
        block_bytes = self._pool.bytes_per_token * self._config.kv_cache.block_tokens
        return self._config.kv_cache.memory_mib * 1024 * 1024 // block_bytes

    def _forward(
        self, rows: tuple[RowPlan, ...], store: KVStore | None
    ) -> tuple[torch.Tensor, tuple[tuple[str, str], ...]]:
        if not rows:
            return torch.empty(0, self._spec.vocab), ()
        return self._backend.run(rows, store)

    def _refusals(self, plan: StepPlan) -> dict[str, str]:
        """By row why it cannot be computed, or "". The blocks of the others are claimed."""
        errors = {row.request_id: self._refuse(row, plan.use_cache) for row in plan.rows}
        if plan.use_cache and self._store is not None:
            sound = [row for row in plan.rows if not errors[row.request_id]]
            claims = [
                (row.block_tables[0], row.generations[0], row.start, row.start + len(row.tokens))
                for row in sound
            ]
            for row, text in zip(sound, self._store.claim_all(claims)):
                errors[row.request_id] = text
        return errors

    def _refuse(self, row: RowPlan, use_cache: bool) -> str:
        """What is wrong with a row besides its blocks, or ""."""
        count = len(row.tokens)
        if not count or min(row.tokens) < 0 or max(row.tokens) >= self._spec.vocab:
            return f"tokens must be a non-empty list of ids in 0..{self._spec.vocab - 1}"
        if any(not 0 <= i < count for i in row.logit_rows) or (row.sample is not None and not row.logit_rows):
            return "logit_rows must name queries of the row, at least one where a token is to be sampled"
        history = row.sample.history if row.sample is not None else ()
        if history and (min(history) < 0 or max(history) >= self._spec.vocab):
            return f"the sampling history must be ids in 0..{self._spec.vocab - 1}"
        if row.draft:
            return "rows with draft tokens are not supported by this worker"
        if row.start < 0 or row.start + count > self._spec.max_positions:
            return f"positions {row.start}..{row.start + count - 1} exceed the model's {self._spec.max_positions}"
        if not use_cache or self._store is None:
            return "" if row.start == 0 and row.context_len == 0 else "a row without a cache must start at 0"
        if row.context_len != row.start or len(row.block_tables) != 1 or len(row.generations) != 1:
            return "a cached row needs context_len == start and one block table with generations"
        return ""

    def _choose(self, rows: tuple[RowPlan, ...], logits: torch.Tensor) -> dict[str, RowResult]:
        """Sample from the last logit row of each row that wants a token."""
        picks: list[tuple[int, SampleSpec]] = []
        end = 0
        for row in rows:
            end += len(row.logit_rows)
            if row.sample is not None:
                picks.append((end - 1, row.sample))
        known = logits
        if self._known_tokens < self._spec.vocab:
            known = logits[:, : self._known_tokens].contiguous()
        chosen = iter(self._backend.choose(known, picks) if picks else ())
        results: dict[str, RowResult] = {}
        start = 0
        for row in rows:
            stop = start + len(row.logit_rows)
            kept = logits[start:stop].cpu().numpy().copy() if row.want_logits else None
            choice = None if row.sample is None else next(chosen)
            results[row.request_id] = _row_result(row.request_id, choice, kept)
            start = stop
        return results


def _row_result(request_id: str, choice: Choice | None, logits: np.ndarray | None) -> RowResult:
    if choice is None:
        return RowResult(request_id, logits=logits)
    if choice.error:
        return RowResult(request_id, logits=logits, error=choice.error)
    return RowResult(
        request_id,
        tokens=(choice.token,),
        logprobs=(choice.logprob,),
        top_logprobs=(choice.top,),
        margins=(choice.margin,),
        logits=logits,
    )


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _device(config: EngineConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda, but torch sees no CUDA device; use device=cpu", field="device")
    return torch.device(config.device)
