"""Read a checkpoint's safetensors into fused, typed weights without holding them twice.

Each layer's file handles are opened and closed around the layer, so that the mapped pages of the file leave the
resident set before the next layer is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from intaglio.compute.layers import LayerRows, LayerWeights, Layout, Linear, ModelWeights
from intaglio.compute.packing import pack
from intaglio.compute.spec import ModelSpec
from intaglio.compute.stack import Stack, copy_rows
from intaglio.errors import ModelError
from intaglio.models.catalogue import weight_files

# What a cast to the model's dtype keeps the meaning of. Integers and 8-bit floats carry scales of their own.
STORED_DTYPES = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})


def load_weights(
    folder: Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device, layouts: Layouts
) -> ModelWeights:
    """Load `folder`'s safetensors in `dtype`.

    Raises ModelError for a missing, wrongly shaped, quantised or unreadable tensor, naming it.
    """
    source = WeightSource(folder, spec, dtype, device, layouts)
    layers = tuple(source.layers())
    return replace(source.outer(), layers=layers, parameters=source.parameters, nbytes=source.nbytes)


class WeightSource:
    """A checkpoint's weights layer by layer, for a path that lays each one out anew and drops it."""

    def __init__(
        self, folder: Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device, layouts: Layouts
    ) -> None:
        self._reader = _Checkpoint(folder)
        self._spec = spec
        self._dtype = dtype
        self._layouts = layouts
        self._loader = _Loader(self._reader, spec, dtype, device, layouts.linear)

    @property
    def parameters(self) -> int:
        """Parameters handed out so far."""
        return self._loader.parameters

    @property
    def nbytes(self) -> int:
        """Bytes handed out so far."""
        return self._loader.nbytes

    def layers(self) -> Iterator[LayerWeights]:
        """The layers in order. Raises ModelError (see load_weights)."""
        for index in range(self._spec.layers):
            yield self._loader.layer(index)

    def check(self) -> None:
        """Raise ModelError (see load_weights) before memory is asked for that config.json may have made up."""
        probe = _Loader(self._reader, self._spec, self._dtype, torch.device("cpu"), Layout.ROWS)
        with self._reader.opened():
            probe.stack([self._head_name()], [self._spec.vocab], self._spec.hidden, None)
            for index in range(self._spec.layers):
                probe.layer_rows(index)

    def layer_rows(self) -> Iterator[LayerRows]:
        """The layers in order, their linears read in runs of rows. A layer is void when the next one is asked for.

        Raises ModelError (see load_weights).
        """
        for index in range(self._spec.layers):
            with self._reader.opened():
                yield self._loader.layer_rows(index)

    def head_rows(self, step: int) -> Iterator[torch.Tensor]:
        """The head's [vocab, hidden] rows, `step` at a time, never more of them in memory."""
        spec = self._spec
        with self._reader.opened():
            head = self._loader.stack([self._head_name()], [spec.vocab], spec.hidden, None)
            for start in range(0, spec.vocab, step):
                yield head.run(start, min(start + step, spec.vocab))

    def embedding(self) -> torch.Tensor | None:
        """The embedding, None where the head serves as one."""
        if self._spec.tied:
            return None
        with self._reader.opened():
            return self._loader.dense("model.embed_tokens.weight", (self._spec.vocab, self._spec.hidden))

    def final_norm(self) -> torch.Tensor:
        """The last norm's weight, fp32."""
        with self._reader.opened():
            return self._loader.norm("model.norm.weight", self._spec.hidden)

    def _head_name(self) -> str:
        name = "model.embed_tokens.weight" if self._spec.tied else "lm_head.weight"
        if not self._spec.tied and not self._reader.has(name):
            raise ModelError(f"{self._reader.folder}: {name} is missing although the head is not tied")
        return name

    def outer(self) -> ModelWeights:
        """Everything outside the layers, with `layers` empty."""
        spec, loader, layouts = self._spec, self._loader, self._layouts
        head_name = self._head_name()
        with self._reader.opened():
            # A tied head is also the embedding, whose rows must stay readable: it is not packed, nor held twice.
            loader.layout = layouts.tied_head if spec.tied else layouts.linear
            head = loader.linear([head_name], [spec.vocab], spec.hidden, None)
        embedding, norm = self.embedding(), self.final_norm()
        return ModelWeights(embedding, (), norm, head, self._dtype, loader.parameters, loader.nbytes)


@dataclass(frozen=True, slots=True)
class Layouts:
    """How linears are held: those of layers and untied heads, and a head that serves as embedding too."""

    linear: Layout
    tied_head: Layout


class _Checkpoint:
    """The tensors of a folder by name, from just those files that identify the model (models.catalogue)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file_of: dict[str, Path] = {}
        for file in weight_files(folder):
            for name in _names(file):
                if name in self._file_of:
                    raise ModelError(
                        f"{folder}: tensor {name} is both in {self._file_of[name].name} and in {file.name}; "
                        "fetch the model again"
                    )
                self._file_of[name] = file
        self._open: dict[Path, Any] = {}

    def has(self, name: str) -> bool:
        return name in self._file_of

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the files that are touched inside open, and unmap them at the end."""
        with ExitStack() as stack:
            self._stack = stack
            try:
                yield
            finally:
                self._open.clear()

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """One tensor as stored, checked against `shape`. It must not outlive `opened()`."""
        file = self._file_of.get(name)
        if file is None:
            raise ModelError(f"{self.folder}: tensor {name} is missing; fetch the model again")
        try:
            if file not in self._open:
                self._open[file] = self._stack.enter_context(safe_open(file, framework="pt"))
            loaded: torch.Tensor = self._open[file].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file} is damaged at {name} ({error}); fetch the model again") from error
        if loaded.dtype not in STORED_DTYPES:
            raise ModelError(
                f"{self.folder}: {name} is stored as {loaded.dtype}, which means nothing without its scales; "
                "give a checkpoint in fp32, fp16 or bf16"
            )
        if tuple(loaded.shape) != shape:
            raise ModelError(
                f"{self.folder}: {name} has shape {tuple(loaded.shape)}, config.json says {shape}"
            )
        return loaded


def _names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as handle:
            return list(handle.keys())
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is damaged ({error}); fetch the model again") from error


class _Loader:
    """Fuses and casts tensors into their final place, one copy each."""

    def __init__(
        self, reader: _Checkpoint, spec: ModelSpec, dtype: torch.dtype, device: torch.device, layout: Layout
    ) -> None:
        self._reader = reader
        self._spec = spec
        self._dtype = dtype
        self._device = device
        self.layout = layout
        self.parameters = 0
        self.nbytes = 0

    def norm(self, name: str, width: int) -> torch.Tensor:
        """A norm's weight rounded to the model's dtype and held in fp32, in which norms are computed."""
        return self._wide(self._reader.tensor(name, (width,)))

    def _wide(self, source: torch.Tensor) -> torch.Tensor:
        target = source.to(device=self._device, dtype=self._dtype).to(torch.float32, copy=True)
        self._count(target)
        return target

    def dense(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        source = self._reader.tensor(name, shape)
        target = torch.empty(shape, dtype=self._dtype, device=self._device)
        copy_rows(target, source)
        self._count(target)
        return target

    def linear(
        self, names: Sequence[str], outs: Sequence[int], inputs: int, biases: Sequence[str] | None
    ) -> Linear:
        """Several projections of the same input as one linear, their outputs one after another."""
        # Read first: a size that config.json makes up is refused before memory is asked for.
        sources = [self._reader.tensor(name, (out, inputs)) for name, out in zip(names, outs, strict=True)]
        total = sum(outs)
        columns = self.layout is Layout.COLUMNS
        shape = (inputs, total) if columns else (total, inputs)
        weight = torch.empty(shape, dtype=self._dtype, device=self._device)
        by_output = weight.t() if columns else weight
        start = 0
        for source, out in zip(sources, outs, strict=True):
            copy_rows(by_output[start : start + out], source)
            start += out
        self._count(weight)
        if self.layout is Layout.PACKED:
            weight = pack(weight)
        return Linear(weight, self._bias(biases, outs), self.layout, inputs, total)

    def stack(
        self, names: Sequence[str], outs: Sequence[int], inputs: int, biases: Sequence[str] | None
    ) -> Stack:
        """The same as `linear`, read as it is needed. It must not outlive `opened()`."""
        sources = tuple(
            self._reader.tensor(name, (out, inputs)) for name, out in zip(names, outs, strict=True)
        )
        self.parameters += sum(outs) * inputs
        return Stack(sources, self._dtype, self._bias(biases, outs))

    def layer_rows(self, index: int) -> LayerRows:
        """One layer whose linears are stacks."""
        spec, prefix = self._spec, f"model.layers.{index}."
        attn, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        return LayerRows(
            input_norm=self.norm(f"{prefix}input_layernorm.weight", spec.hidden),
            qkv=self.stack(*self._projection(attn, ("q_proj", "k_proj", "v_proj"), spec.hidden)),
            qk_norm=self._qk_norm(attn),
            out=self.stack(*self._projection(attn, ("o_proj",), spec.q_width)),
            post_norm=self.norm(f"{prefix}post_attention_layernorm.weight", spec.hidden),
            gate_up=self.stack(*self._projection(mlp, ("gate_proj", "up_proj"), spec.hidden)),
            down=self.stack(*self._projection(mlp, ("down_proj",), spec.intermediate)),
            window=spec.windows[index],
        )

    def layer(self, index: int) -> LayerWeights:
        spec, prefix = self._spec, f"model.layers.{index}."
        with self._reader.opened():
            attn, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
            qkv = self.linear(*self._projection(attn, ("q_proj", "k_proj", "v_proj"), spec.hidden))
            out = self.linear(*self._projection(attn, ("o_proj",), spec.q_width))
            gate_up = self.linear(*self._projection(mlp, ("gate_proj", "up_proj"), spec.hidden))
            down = self.linear(*self._projection(mlp, ("down_proj",), spec.intermediate))
            return LayerWeights(
                input_norm=self.norm(f"{prefix}input_layernorm.weight", spec.hidden),
                qkv=qkv,
                qk_norm=self._qk_norm(attn),
                out=out,
                post_norm=self.norm(f"{prefix}post_attention_layernorm.weight", spec.hidden),
                gate_up=gate_up,
                down=down,
                window=spec.windows[index],
            )

    def _projection(
        self, prefix: str, parts: Sequence[str], inputs: int
    ) -> tuple[list[str], list[int], int, list[str]]:
        """Names, widths, inputs and biases of projections, as `linear` and `stack` take them."""
        spec = self._spec
        widths = {
            "q_proj": spec.q_width,
            "k_proj": spec.kv_width,
            "v_proj": spec.kv_width,
            "o_proj": spec.hidden,
            "gate_proj": spec.intermediate,
            "up_proj": spec.intermediate,
            "down_proj": spec.hidden,
        }
        names = [f"{prefix}{part}.weight" for part in parts]
        biases = [f"{prefix}{part}.bias" for part in parts]
        return names, [widths[part] for part in parts], inputs, biases

    def _bias(self, names: Sequence[str] | None, outs: Sequence[int]) -> torch.Tensor | None:
        present = [name for name in names or () if self._reader.has(name)]
        if not present or names is None:
            return None
        bias = torch.zeros(sum(outs), dtype=self._dtype, device=self._device)
        start = 0
        for name, out in zip(names, outs, strict=True):
            if name in present:
                bias[start : start + out].copy_(self._reader.tensor(name, (out,)))
            start += out
        self._count(bias)
        return bias

    def _qk_norm(self, attn: str) -> torch.Tensor | None:
        spec = self._spec
        if spec.family != "qwen3":
            return None
        q = self._reader.tensor(f"{attn}q_norm.weight", (spec.head_dim,))
        k = self._reader.tensor(f"{attn}k_norm.weight", (spec.head_dim,))
        heads = torch.cat((q.expand(spec.heads, -1), k.expand(spec.kv_heads, -1)))
        norm = self._wide(heads)
        self.parameters += 2 * spec.head_dim - norm.numel()
        return norm

    def _count(self, tensor: torch.Tensor) -> None:
        self.parameters += tensor.numel()
        self.nbytes += tensor.nbytes
