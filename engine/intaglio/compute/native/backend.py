"""The native kernels as a worker's backend: load a model into panels, prove it, run steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from intaglio.compute.layers import Layout
from intaglio.compute.native import chooser
from intaglio.compute.native import status as native_status
from intaglio.compute.native.decoder import NativeDecoder
from intaglio.compute.native.formats import FORMATS
from intaglio.compute.native.library import FORMAT_OF, Context
from intaglio.compute.native.model import NativeModel
from intaglio.compute.resident import drop_code
from intaglio.compute.spec import ModelSpec
from intaglio.compute.weights import Layouts, WeightSource
from intaglio.intake.step_plan import RowPlan, SampleSpec
from intaglio.output.sampler import Choice
from intaglio.state.kv_store import KVStore

# Layers that the proof at start-up runs: they hold every kind of operation in the model's own shapes.
_PROOF_LAYERS = 2
_PROOF_TOKENS = 40
# Rows of the head that are in memory at once while it is packed: whole panels.
_HEAD_ROWS = 8 * 64
# Bytes of one layer's keys and values from which large pages are worth what they waste.
_HUGE_LAYER_BYTES = 32 << 20
# Rows of logits whose memory is kept between steps.
_KEPT_LOGIT_ROWS = 64
# MAX_HEAD_BYTES of src/tile.h in fp32.
MAX_HEAD_DIM = 512


class NativeBackend:
    """Steps of one model on one instruction set. Bits depend on neither batch, chunk, cache nor thread count."""

    mode = "invariant"

    def __init__(self, decoder: NativeDecoder, path: str) -> None:
        self._decoder = decoder
        self.path = path
        self.parameters = decoder.model.parameters
        self.weight_bytes = decoder.model.nbytes
        # Fresh memory in every step would cost a page fault per 4 KiB; only what is touched is ever held.
        self._logits = torch.empty(_KEPT_LOGIT_ROWS, decoder.spec.vocab)

    def run(
        self, rows: Sequence[RowPlan], store: KVStore | None
    ) -> tuple[torch.Tensor, tuple[tuple[str, str], ...]]:
        """fp32 logits of the rows' chosen queries, good until the next run. Blocks are read where they lie, so nothing
        is ever gathered."""
        return self._decoder.run(rows, store, self._logits), ()

    def choose(self, logits: torch.Tensor, picks: Sequence[tuple[int, SampleSpec]]) -> list[Choice]:
        """See Backend.choose."""
        return chooser.choose(self._decoder.context, logits, picks)

    def adopt(self, store: KVStore) -> None:
        """Ask for large pages before the store is first touched: decoding walks all of a row's tokens. A small
        store goes without, for each of its layers would hold whole large pages for a few tokens."""
        if store.data.stride(0) * store.data.itemsize < _HUGE_LAYER_BYTES:
            return
        self._decoder.context.library.calls.ig_advise_huge(store.data.data_ptr(), store.data.nbytes)

    def close(self) -> None:
        """Stop the threads."""
        self._decoder.context.close()


def load(
    folder: Path, spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, threads: int, weight_format: str
) -> tuple[NativeBackend | None, str]:
    """A proven backend, or None and the reason. Raises ModelError for a damaged model, ConfigError for a weight
    format that its shapes do not fit."""
    if spec.head_dim > MAX_HEAD_DIM:
        return None, f"heads of {spec.head_dim} dimensions; the native kernels hold at most {MAX_HEAD_DIM}"
    state = native_status.status()
    if state.library is None:
        return None, state.reason
    context = Context(state.library, state.isa, threads)
    drop_code()  # what importing and proving touched is not what running needs
    decoder = NativeDecoder(spec, load_model(context, folder, spec, dtype, weight_format), context, kv_dtype)
    if not _proven(decoder):
        context.close()
        return (
            None,
            f"{state.path} changed bits with the chunk on this model, or gave no finite numbers (damaged weights)",
        )
    drop_code()
    held = "" if weight_format == "auto" else f"/{weight_format}"
    return NativeBackend(decoder, f"invariant/cpu/{state.path}{held}"), ""


def load_model(
    context: Context, folder: Path, spec: ModelSpec, dtype: torch.dtype, weight_format: str = "auto"
) -> NativeModel:
    """A checkpoint in the kernels' panels; each layer is dropped as soon as it is packed.

    weight_format: auto (that of `dtype`) or a name of formats.FORMATS; quantised from the checkpoint's own values.
    """
    auto = weight_format == "auto"
    source_dtype = dtype if auto else torch.float32
    source = WeightSource(folder, spec, source_dtype, torch.device("cpu"), Layouts(Layout.ROWS, Layout.ROWS))
    source.check()
    model = NativeModel(context.library, spec, FORMAT_OF[dtype] if auto else FORMATS[weight_format], dtype)
    for index, layer in enumerate(source.layer_rows()):
        model.add_layer(index, layer)
        context.library.calls.ig_trim()
    model.finish(source.final_norm(), source.head_rows(_HEAD_ROWS), source.embedding())
    context.library.calls.ig_trim()
    model.parameters = source.parameters
    return model


def _proven(decoder: NativeDecoder) -> bool:
    """Hidden states after the first layers and logits: one prefill against one token at a time, uncached rows
    side by side, all bit for bit."""
    spec = decoder.spec
    tokens = [(7919 * i + 13) % spec.vocab for i in range(min(_PROOF_TOKENS, spec.max_positions))]
    last = min(_PROOF_LAYERS, spec.layers)

    def rows(*lengths: int) -> list[RowPlan]:
        return [
            RowPlan(str(n), tuple(tokens[:n]), 0, 0, (), (), (n - 1,), "prefill", want_logits=False)
            for n in lengths
        ]

    def run(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.empty(len(lengths), spec.vocab)
        return decoder.forward(rows(*lengths), None, last=last, logits=logits), logits

    whole, _ = run(len(tokens))
    lengths = (1, 5, 3, 17)
    together, logits = run(*lengths)
    start = 0
    for number, length in enumerate(lengths):
        if length > len(tokens):
            continue
        alone, own = run(length)
        same = torch.equal(alone, whole[:length]) and torch.equal(alone, together[start : start + length])
        if not same or not torch.equal(own[0], logits[number]):
            return False
        start += length
    return bool(torch.isfinite(whole).all().item())
