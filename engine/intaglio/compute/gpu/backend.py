"""The Triton kernels as a worker's backend: on CUDA, or in Triton's interpreter where a test asks for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from intaglio.compute import selftest
from intaglio.compute.device_queue import settle
from intaglio.compute.gpu import status as gpu_status
from intaglio.compute.gpu.tiles import MAX_HEAD_DIM
from intaglio.compute.graph import EagerGraph
from intaglio.compute.layers import Layout, RopeTable
from intaglio.compute.spec import ModelSpec
from intaglio.compute.weights import Layouts, load_weights
from intaglio.errors import NumericsError
from intaglio.intake.step_plan import RowPlan, SampleSpec
from intaglio.output.sampler import Choice, choose_token
from intaglio.state.kv_store import KVStore

_KV_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class TritonBackend:
    """Steps of one model through paged kernels. Raises NumericsError where they fail their proof on this device."""

    def __init__(
        self,
        mode: str,
        folder: Path,
        spec: ModelSpec,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Imported late: whether kernels are compiled or interpreted is settled when Triton is first imported.
        from intaglio.compute.gpu.decoder import PagedDecoder
        from intaglio.compute.gpu.numerics import TritonNumerics
        from intaglio.compute.gpu.proof import require_paged

        weights = load_weights(folder, spec, dtype, device, Layouts(Layout.ROWS, Layout.ROWS))
        numerics = TritonNumerics(mode, spec, dtype, device, gpu_status.status(device))
        require_paged(numerics, spec, dtype, kv_dtype, device)
        if mode == "invariant":
            selftest.require_invariance(numerics, spec, weights)
        self._device = device
        self._decoder = PagedDecoder(spec, weights, numerics, kv_dtype)
        self._graph = EagerGraph(self._decoder)
        self._rope = RopeTable(spec, device)
        self.path = numerics.path
        self.mode = mode
        self.parameters = weights.parameters
        self.weight_bytes = weights.nbytes

    def run(
        self, rows: Sequence[RowPlan], store: KVStore | None
    ) -> tuple[torch.Tensor, tuple[tuple[str, str], ...]]:
        """See Backend.run. Blocks are read where they lie, so nothing is ever gathered."""
        with torch.inference_mode():
            logits = self._graph.run(self._decoder.batch(rows, store, self._rope, self._device))
        settle(self._device)
        return logits, ()

    def choose(self, logits: torch.Tensor, picks: Sequence[tuple[int, SampleSpec]]) -> list[Choice]:
        """See Backend.choose."""
        with torch.inference_mode():
            return [self._choose(logits[row], spec) for row, spec in picks]

    def _choose(self, logits: torch.Tensor, spec: SampleSpec) -> Choice:
        """A token from one row of logits [vocab]; a plain greedy choice costs one transfer of four numbers."""
        if spec.temperature > 0.0 or spec.repetition_penalty != 1.0 or spec.logprobs is not None:
            return choose_token(logits.cpu(), spec)
        best = logits.argmax()
        pair = torch.topk(logits, min(2, logits.shape[0])).values
        total = torch.logsumexp(logits, 0)
        token, peak, *second, log = torch.cat(
            (best[None].double(), pair.double(), total[None].double())
        ).tolist()
        if not math.isfinite(peak) or not math.isfinite(log):
            return choose_token(logits.cpu(), spec)
        margin = peak - second[0] if second else math.inf
        return Choice(token=int(token), logprob=peak - log, margin=margin)

    def adopt(self, store: KVStore) -> None:
        """A store needs nothing."""

    def close(self) -> None:
        """Nothing is held but memory."""


def load(
    mode: str,
    folder: Path,
    spec: ModelSpec,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
) -> tuple[TritonBackend | None, str]:
    """A proven backend, or None and the reason. Raises ModelError for a damaged model."""
    state = gpu_status.status(device)
    if not state.usable:
        return None, state.reason
    if spec.head_dim > MAX_HEAD_DIM:
        return None, f"heads of {spec.head_dim} dimensions; the Triton kernels hold at most {MAX_HEAD_DIM}"
    if kv_dtype not in _KV_DTYPES:
        return None, f"the Triton kernels do not read a KV cache of {kv_dtype}"
    try:
        return TritonBackend(mode, folder, spec, dtype, kv_dtype, device), ""
    except NumericsError as error:
        return None, str(error)
