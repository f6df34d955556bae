"""What computes a step's logits: torch's operators, native or Triton kernels. A worker knows no more of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from intaglio.compute import selftest
from intaglio.compute.batch import build_batch
from intaglio.compute.decoder import Decoder
from intaglio.compute.device_queue import settle
from intaglio.compute.gpu import backend as gpu
from intaglio.compute.gpu import status as gpu_status
from intaglio.compute.graph import EagerGraph
from intaglio.compute.layers import RopeTable
from intaglio.compute.native import backend as native
from intaglio.compute.numerics import choose, choose_layouts
from intaglio.compute.shard import ShardGroup
from intaglio.compute.spec import ModelSpec
from intaglio.compute.weights import load_weights
from intaglio.errors import ConfigError
from intaglio.intake.step_plan import RowPlan, SampleSpec
from intaglio.output.sampler import Choice, choose_token
from intaglio.state.kv_store import KVStore

Events = tuple[tuple[str, str], ...]


class Backend(Protocol):
    """`path` names the kernels taken and is part of the environment's identity; `mode` is fast or invariant."""

    path: str
    mode: str
    parameters: int
    weight_bytes: int

    def run(self, rows: Sequence[RowPlan], store: KVStore | None) -> tuple[torch.Tensor, Events]:
        """fp32 logits of the rows' chosen queries [logit rows, vocab], computed when it returns, and counted events.
        `store` None: no cache."""
        ...

    def choose(self, logits: torch.Tensor, picks: Sequence[tuple[int, SampleSpec]]) -> list[Choice]:
        """One token for each (row of logits [rows, vocab], spec)."""
        ...

    def adopt(self, store: KVStore) -> None:
        """Make a fresh store ready for use."""
        ...

    def close(self) -> None: ...


class TorchBackend:
    """Runs the decoder on torch's operators, on any device, in either numerics mode."""

    def __init__(
        self, mode: str, folder: Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device
    ) -> None:
        layouts = choose_layouts(dtype, device)
        numerics = choose(mode, device, layouts)
        weights = load_weights(folder, spec, dtype, device, layouts)
        if mode == "invariant":
            selftest.require_invariance(numerics, spec, weights)
        self._spec = spec
        self._device = device
        self._graph = EagerGraph(Decoder(spec, weights, numerics, ShardGroup()))
        self._rope = RopeTable(spec, device)
        self.path = numerics.path
        self.mode = mode
        self.parameters = weights.parameters
        self.weight_bytes = weights.nbytes

    def run(self, rows: Sequence[RowPlan], store: KVStore | None) -> tuple[torch.Tensor, Events]:
        """See Backend.run."""
        with torch.inference_mode():
            batch = build_batch(rows, store, self._rope, self._device)
            gathers = sum(1 for span in batch.rows if span.run is not None and span.run.index is not None)
            logits = self._graph.run(batch)
        settle(self._device)
        return logits, ((("kv_gather", str(gathers)),) if gathers else ())

    def choose(self, logits: torch.Tensor, picks: Sequence[tuple[int, SampleSpec]]) -> list[Choice]:
        """See Backend.choose."""
        with torch.inference_mode():
            return [choose_token(logits[row], spec) for row, spec in picks]

    def adopt(self, store: KVStore) -> None:
        """A store needs nothing."""

    def close(self) -> None:
        """Nothing is held but memory."""


def load_backend(
    mode: str,
    folder: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
    threads: int,
    weight_format: str = "auto",
) -> tuple[Backend, str]:
    """The backend of a numerics mode, and why it is not the one that was wanted ("" if it is).

    Invariant mode on a CPU wants the native kernels; where they cannot be had it takes torch's operators in row
    tiles, which must pass their own self-test or NumericsError is raised. Mode auto takes torch's operators in fast
    mode there. A quantised weight format is the native kernels' alone: ConfigError where they cannot be had.
    CUDA wants the Triton kernels, in either mode, and falls back to torch's operators too.
    """
    reason = "the native kernels compute on device=cpu" if mode == "auto" else ""
    on_gpu = gpu_status.wanted(device)
    if mode != "fast" and device.type == "cpu" and not on_gpu:
        # The kernels have threads of their own. OpenMP's, once an operator of torch has started them, would take cores
        # from these whenever they wait actively, which may be for ever.
        torch.set_num_threads(1)
        loaded, reason = native.load(folder, spec, dtype, kv_dtype, threads, weight_format)
        if loaded is not None:
            return loaded, ""
        torch.set_num_threads(threads)
    if weight_format != "auto":
        why = reason or "they serve numerics.mode=auto and invariant on device=cpu"
        raise ConfigError(
            f"weights.format={weight_format} needs the native kernels: {why}", field="weights.format"
        )
    settled = "fast" if mode == "auto" else mode
    if on_gpu:
        paged, why = gpu.load(settled, folder, spec, dtype, kv_dtype, device)
        if paged is not None:
            return paged, reason
        reason = why
    return TorchBackend(settled, folder, spec, dtype, device), reason
