"""The loaded library: its functions with their types, and the contexts (instruction set, threads) they run in."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch

from intaglio.compute.native import structs
from intaglio.compute.native.structs import IgAttention, IgChoice, IgKv, IgLinear, IgModel, IgStep
from intaglio.errors import WorkerError
from intaglio.state.kv_codec import code_type

FORMAT_OF = {torch.float32: structs.FP32, torch.bfloat16: structs.BF16}
# By the type of what a KV store holds of each number (see state/kv_codec.py).
KV_FORMAT_OF = {
    **FORMAT_OF,
    torch.float8_e4m3fn: structs.KV_FP8,
    torch.int8: structs.KV_INT8,
    code_type("int4"): structs.KV_INT4,
}


class Library:
    """The shared library. Raises OSError if it cannot be loaded or is of another version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: Any = ctypes.CDLL(str(path))
        _declare(self.calls)
        if self.calls.ig_abi() != structs.ABI:
            raise OSError(f"{path} has version {self.calls.ig_abi()} of the interface, not {structs.ABI}")

    def isas(self) -> tuple[str, ...]:
        """Instruction sets that are compiled in and that this processor can run, best first."""
        return tuple(
            self.calls.ig_isa_name(i).decode()
            for i in range(self.calls.ig_isa_count())
            if self.calls.ig_isa_usable(i)
        )


class Context:
    """One instruction set and its own threads. Not for use by two callers at once."""

    def __init__(self, library: Library, isa: str, threads: int, spin_us: int = 10) -> None:
        self.library = library
        self.isa = isa
        self.threads = threads
        self._calls = library.calls
        self._handle = c_void_p(self._calls.ig_open(isa.encode(), threads, spin_us))
        if not self._handle:
            raise WorkerError(
                f"instruction set '{isa}' cannot be used here; usable: {', '.join(library.isas())}"
            )

    def close(self) -> None:
        """Stop the threads and free the workspace. Idempotent."""
        handle, self._handle = self._handle, c_void_p()
        if handle:
            self._calls.ig_close(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    @property
    def workspace_bytes(self) -> int:
        """Bytes of activations and scratch held now."""
        return int(self._calls.ig_workspace_bytes(self._open()))

    def _open(self) -> c_void_p:
        if not self._handle:
            raise WorkerError("this context of native kernels is closed; load the model again")
        return self._handle

    def forward(self, model: IgModel, step: IgStep) -> None:
        """Run layers [step.first, step.last) and the logits asked for."""
        _check(self._calls.ig_forward(self._open(), model, step))

    def linear(self, linear: IgLinear, x: torch.Tensor, *, rounded: bool = True) -> torch.Tensor:
        """y = x W^T + b, fp32 in and out: x [rows, k] to [rows, n].

        rounded: x may be rounded to bf16 where the weights are not fp32 and the instruction set multiplies bf16.
        """
        x = x.to(torch.float32).contiguous()
        y = torch.empty(x.shape[0], linear.n)
        _check(self._calls.ig_linear(self._open(), linear, x.data_ptr(), x.shape[0], rounded, y.data_ptr()))
        return y

    def attention(self, job: IgAttention) -> None:
        _check(self._calls.ig_attention(self._open(), job))

    def kv_store(
        self, x: torch.Tensor, slots: torch.Tensor, kv: IgKv, layer: int, kv_heads: int, head_dim: int
    ) -> None:
        """Store keys and values, fp32 [tokens, 2, kv_heads, head_dim], at int32 slots [tokens] of a layer."""
        args = (x.data_ptr(), slots.data_ptr(), x.shape[0], kv, layer, kv_heads, head_dim)
        _check(self._calls.ig_kv_store(self._open(), *args))

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """fp32 rows [rows, width]."""
        y = torch.empty_like(x)
        args = (x.data_ptr(), weight.data_ptr(), eps, x.shape[0], x.shape[1], y.data_ptr())
        _check(self._calls.ig_rms_norm(self._open(), *args))
        return y

    def swiglu(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, fp32 of one shape."""
        y = torch.empty_like(gate)
        _check(
            self._calls.ig_swiglu(self._open(), gate.data_ptr(), up.data_ptr(), gate.numel(), y.data_ptr())
        )
        return y

    def choose(self, logits: torch.Tensor, choices: ctypes.Array[IgChoice]) -> None:
        """Choose tokens from fp32 logits [rows, vocab] (see IgChoice in src/abi.h)."""
        args = (logits.data_ptr(), logits.shape[1], ctypes.addressof(choices), len(choices))
        _check(self._calls.ig_choose(self._open(), *args))

    def top(self, logits: torch.Tensor) -> tuple[list[int], torch.Tensor]:
        """Best token of each fp32 row (lowest id on a tie, -1 if no number), and [rows, 3]: its logit, the
        second best logit, the log of the sum of exponentials."""
        rows, vocab = logits.shape
        best = (c_int64 * rows)()
        values = torch.empty(rows, 3)
        args = (logits.data_ptr(), rows, vocab, ctypes.addressof(best), values.data_ptr())
        _check(self._calls.ig_top(self._open(), *args))
        return list(best), values


def pack_linear(
    library: Library,
    packed: torch.Tensor,
    rows: torch.Tensor,
    shape: tuple[int, int],
    form: int,
    panels: range,
) -> None:
    """Pack the rows of [n, k] = `shape`, encoded in a format (see formats.encode), into the panels of a range."""
    n, k = shape
    _check(library.calls.ig_pack(packed.data_ptr(), rows.data_ptr(), n, k, form, panels.start, panels.step))


def packed_bytes(library: Library, n: int, k: int, form: int) -> int:
    """Bytes of a packed linear of n outputs and k inputs."""
    return int(library.calls.ig_packed_bytes(n, k, form))


def _check(code: int) -> None:
    if code:
        reason = "memory ran out" if code == -2 else f"code {code}"
        raise WorkerError(f"a native kernel failed ({reason}); the step was not computed")


def _declare(calls: Any) -> None:
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ig_abi": (c_int64, []),
        "ig_isa_count": (c_int64, []),
        "ig_isa_name": (c_char_p, [c_int64]),
        "ig_isa_usable": (c_int64, [c_int64]),
        "ig_open": (c_void_p, [c_char_p, c_int64, c_int64]),
        "ig_close": (None, [c_void_p]),
        "ig_workspace_bytes": (c_int64, [c_void_p]),
        "ig_packed_bytes": (c_int64, [c_int64] * 3),
        "ig_pack": (c_int64, [c_void_p, c_void_p, *[c_int64] * 5]),
        "ig_unpack_rows": (c_int64, [c_void_p, POINTER(IgLinear), c_void_p, c_int64]),
        "ig_advise_huge": (None, [c_void_p, c_int64]),
        "ig_trim": (None, []),
        "ig_linear": (c_int64, [c_void_p, POINTER(IgLinear), c_void_p, c_int64, c_int64, c_void_p]),
        "ig_attention": (c_int64, [c_void_p, POINTER(IgAttention)]),
        "ig_kv_store": (c_int64, [c_void_p, c_void_p, c_void_p, c_int64, POINTER(IgKv), *[c_int64] * 3]),
        "ig_rms_norm": (c_int64, [c_void_p, c_void_p, c_void_p, c_double, c_int64, c_int64, c_void_p]),
        "ig_swiglu": (c_int64, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p]),
        "ig_top": (c_int64, [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p]),
        "ig_choose": (c_int64, [c_void_p, c_void_p, c_int64, c_void_p, c_int64]),
        "ig_forward": (c_int64, [c_void_p, POINTER(IgModel), POINTER(IgStep)]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(calls, name)
        function.restype, function.argtypes = result, arguments
