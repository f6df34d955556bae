"""A decoder's weights in the kernels' panels, in one piece of memory, and the structure that describes them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

import torch

from intaglio.compute.layers import LayerRows, LayerWeights, LinearRows
from intaglio.compute.native import formats
from intaglio.compute.native.library import FORMAT_OF, Library, pack_linear, packed_bytes
from intaglio.compute.native.structs import IgLayer, IgLinear, IgModel
from intaglio.compute.spec import ModelSpec

_PAGE = 2 * 1024 * 1024
_LINE = 64
PANEL = 64
# Elements of a linear that are in memory at once beside its panels while it is packed.
_RUN_ELEMENTS = 1 << 18


class Arena:
    """One aligned stretch of memory that is handed out from the front, backed by large pages where there are any."""

    def __init__(self, library: Library, nbytes: int) -> None:
        self._memory = torch.empty(nbytes + _PAGE, dtype=torch.uint8)
        self._at = -self._memory.data_ptr() % _PAGE
        self._end = self._at + nbytes
        library.calls.ig_advise_huge(self._memory.data_ptr() + self._at, nbytes)

    def take(self, nbytes: int) -> torch.Tensor:
        """The next `nbytes` bytes, on a cache line of their own."""
        start = self._at
        self._at += -(-nbytes // _LINE) * _LINE
        if self._at > self._end:
            raise ValueError(f"the arena is full: {self._at - self._end} bytes too few")
        return self._memory[start : start + nbytes]


class NativeModel:
    """Packs layers as they are loaded, so that a model is never held twice. Linears come as [out, in] rows."""

    def __init__(self, library: Library, spec: ModelSpec, form: int, dtype: torch.dtype) -> None:
        """form: how linears are held; dtype: what activations and an embedding of its own are rounded to."""
        self._library = library
        self._spec = spec
        self._format = form
        self._dtype = dtype
        self._arena = Arena(library, _arena_bytes(library, spec, self._format))
        self._layers = (IgLayer * spec.layers)()
        self._kept: list[torch.Tensor] = []
        self.parameters = 0
        self.nbytes = 0
        self.struct = IgModel()

    def add_layer(self, index: int, weights: LayerWeights | LayerRows) -> None:
        """Pack one layer; its tensors may be dropped afterwards."""
        layer = self._layers[index]
        layer.input_norm = self._dense(weights.input_norm)
        layer.post_norm = self._dense(weights.post_norm)
        layer.qk_norm = None if weights.qk_norm is None else self._dense(weights.qk_norm)
        layer.qkv = self._linear(weights.qkv)
        layer.out = self._linear(weights.out)
        layer.gate_up = self._linear(weights.gate_up, parts=2)
        layer.down = self._linear(weights.down)
        layer.window = weights.window or 0

    def finish(
        self, final_norm: torch.Tensor, head: Iterable[torch.Tensor], embedding: torch.Tensor | None
    ) -> None:
        """Pack the head, which comes as runs of rows of whole panels, and fill the model's structure.

        `embedding` None: the head's rows serve.
        """
        spec, model = self._spec, self.struct
        model.layers = ctypes.cast(self._layers, ctypes.POINTER(IgLayer))
        model.final_norm = self._dense(final_norm)
        model.head = self._head(head)
        if embedding is not None:
            self.parameters += embedding.numel()
            model.embedding = self._keep(embedding.to(self._dtype).contiguous())
            model.embedding_format = FORMAT_OF[self._dtype]
        model.layer_count, model.hidden, model.intermediate = spec.layers, spec.hidden, spec.intermediate
        model.heads, model.kv_heads, model.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        model.vocab, model.norm_eps = spec.vocab, spec.norm_eps
        model.rounded = int(self._dtype == torch.bfloat16)

    def _head(self, runs: Iterable[torch.Tensor]) -> IgLinear:
        n, k, form = self._spec.vocab, self._spec.hidden, formats.head_format(self._format)
        nbytes = packed_bytes(self._library, n, k, form)
        packed, scales, start = self._arena.take(nbytes), [], 0
        for rows in runs:
            part = pack_parts(self._library, packed, [rows], [range(start // PANEL, n, 1)], form)
            scales.extend([] if part is None else [part])
            start += rows.shape[0]
            self._library.calls.ig_trim()
        self.parameters += n * k
        self.nbytes += nbytes
        held = self._keep(torch.cat(scales)) if scales else None
        return IgLinear(packed.data_ptr(), held, None, n, k, form)

    def _dense(self, tensor: torch.Tensor) -> int:
        """Small tensors are held in fp32, whatever the model's type."""
        self.parameters += tensor.numel()
        return self._keep(tensor.to(torch.float32).contiguous().clone())

    def _keep(self, tensor: torch.Tensor) -> int:
        self._kept.append(tensor)
        self.nbytes += tensor.nbytes
        return tensor.data_ptr()

    def _linear(self, linear: LinearRows, parts: int = 1) -> IgLinear:
        """Pack a linear, run by run of whole panels. With two parts (gate and up) their panels take turns, so that
        one chunk of work holds both and multiplies them at once."""
        n, k, form = linear.out_features, linear.in_features, self._format
        each = n // parts
        nbytes = parts * packed_bytes(self._library, each, k, form)
        packed, scales = self._arena.take(nbytes), []
        step = max(1, _RUN_ELEMENTS // (k * PANEL)) * PANEL
        for part in range(parts):
            for start in range(0, each, step):
                rows = linear.run(part * each + start, part * each + min(start + step, each))
                panels = range(start // PANEL * parts + part, n, parts)
                own = pack_parts(self._library, packed, [rows], [panels], form)
                scales.extend([] if own is None else [own])
        self.parameters += n * k
        self.nbytes += nbytes
        bias = None if linear.bias is None else self._dense(linear.bias)
        held = self._keep(torch.cat(scales)) if scales else None
        return IgLinear(packed.data_ptr(), held, bias, n, k, form)


def pack_parts(
    library: Library, packed: torch.Tensor, parts: Sequence[torch.Tensor], panels: Sequence[range], form: int
) -> torch.Tensor | None:
    """Encode and pack dense [n, k] parts, each into its panels. Returns the outputs' scales where there are any."""
    scales = []
    for part, where in zip(parts, panels, strict=True):
        coded = formats.encode(part, form)
        n, k = part.shape
        pack_linear(library, packed, coded.data, (n, k), form, where)
        if coded.scales is not None:
            scales.append(coded.scales)
    return torch.cat(scales) if scales else None


def _arena_bytes(library: Library, spec: ModelSpec, form: int) -> int:
    def size(n: int, k: int, of: int = form) -> int:
        return packed_bytes(library, n, k, of) + _LINE

    layer = (
        size(spec.q_width + 2 * spec.kv_width, spec.hidden)
        + size(spec.hidden, spec.q_width)
        + 2 * size(spec.intermediate, spec.hidden)
        + size(spec.hidden, spec.intermediate)
    )
    return spec.layers * layer + size(spec.vocab, spec.hidden, formats.head_format(form))


def linear_struct(
    library: Library, weight: torch.Tensor, bias: torch.Tensor | None = None, form: int | None = None
) -> tuple[IgLinear, object]:
    """One packed linear of its own (format: the weight's own by default), and what must be kept alive beside it."""
    n, k = weight.shape
    form = FORMAT_OF[weight.dtype] if form is None else form
    packed = torch.empty(packed_bytes(library, n, k, form), dtype=torch.uint8)
    scales = pack_parts(library, packed, [weight], [range(0, n, 1)], form)
    wide = None if bias is None else bias.to(torch.float32).contiguous()
    addresses = [None if t is None else t.data_ptr() for t in (scales, wide)]
    return IgLinear(packed.data_ptr(), *addresses, n, k, form), (packed, scales, wide)
