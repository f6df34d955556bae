"""Keys and values into what a block stores, and back: one codec per KV format.

The quantised codecs give every head of every token its own parameters, keys and values apart (the record is that of
kv_format.py), from that head's numbers alone. With m the largest size |x| among them:

  int8  code = round(x / s), s = m / 127, one fp32 s; error at most s / 2
  fp8   code = e4m3(x / s), s = m / 448 so that none overflows, one fp32 s; error at most |x| / 16 + s / 1024
  int4  code = round((x - low) / s) in 0..15, low the least and s a fifteenth of the spread, both bf16;
        error at most s / 2 + m / 128

s is at least 2^-126, so zeros stay exact zeros. Sizes beyond 2^126 saturate there. A head that holds NaN or an
infinity is read back as NaN throughout: it cannot become a number in silence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch

from intaglio.errors import ConfigError
from intaglio.state.kv_format import KVFormat, kv_format

# Also in compute/native/src/kv.h: both write the same bytes.
SATURATION = 2.0**126
SMALLEST_STEP = 2.0**-126
INT8_STEPS = 127.0
E4M3_LARGEST = 448.0
INT4_STEPS = 15.0
_UINT4: torch.dtype = torch.uint4  # type: ignore[attr-defined]


class KVCodec(Protocol):
    """A stored token is a tensor of `storage` numbers in the shape of `token_shape`."""

    @property
    def format(self) -> KVFormat: ...

    @property
    def storage(self) -> torch.dtype: ...

    @property
    def poison(self) -> float:
        """A fill that is read back as NaN."""
        ...

    def token_shape(self, kv_heads: int, head_dim: int) -> tuple[int, ...]: ...

    def encode(self, fresh: torch.Tensor) -> torch.Tensor:
        """[n, 2, kv_heads, head_dim] of any floating type to [n, *token_shape]."""
        ...

    def decode(self, stored: torch.Tensor, kv_heads: int, head_dim: int) -> torch.Tensor:
        """[n, *token_shape] to [n, 2, kv_heads, head_dim]: fp32 where quantised, else as stored."""
        ...


class DenseCodec:
    """Numbers of a floating type as they are. Decoding copies nothing."""

    poison = float("nan")

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.format = kv_format(name)
        self.storage = dtype

    def token_shape(self, kv_heads: int, head_dim: int) -> tuple[int, ...]:
        return 2, kv_heads, head_dim

    def encode(self, fresh: torch.Tensor) -> torch.Tensor:
        return fresh.to(self.storage)

    def decode(self, stored: torch.Tensor, kv_heads: int, head_dim: int) -> torch.Tensor:
        return stored.view(stored.shape[0], 2, kv_heads, head_dim)


class _RecordCodec(ABC):
    """What the quantised codecs share: parameters and codes in one record of bytes."""

    storage = torch.uint8
    # Every parameter of ones is a NaN.
    poison = 255.0

    def __init__(self, name: str) -> None:
        self.format = kv_format(name)

    def token_shape(self, kv_heads: int, head_dim: int) -> tuple[int, ...]:
        return (self.format.token_bytes(kv_heads, head_dim),)

    def encode(self, fresh: torch.Tensor) -> torch.Tensor:
        n, two, heads, dim = fresh.shape
        wide = fresh.to(torch.float32)
        # x - x is 0 for a finite x, else NaN.
        sound = (wide - wide == 0.0).all(-1, keepdim=True)
        parameters, codes = self._quantise(wide.clamp(-SATURATION, SATURATION).where(sound, 0.0), sound)
        shape = (n, *self.token_shape(heads, dim))
        record = torch.zeros(shape, dtype=torch.uint8, device=fresh.device)
        start = two * heads * self.format.parameter_bytes
        record[:, :start] = parameters.contiguous().view(torch.uint8).view(n, start)
        end = start + two * heads * self.format.code_bytes(dim)
        record[:, start:end] = codes.contiguous().view(torch.uint8).view(n, end - start)
        return record

    def decode(self, stored: torch.Tensor, kv_heads: int, head_dim: int) -> torch.Tensor:
        n, size = stored.shape[0], self.format.code_bytes(head_dim)
        start = 2 * kv_heads * self.format.parameter_bytes
        codes = stored[:, start : start + 2 * kv_heads * size].reshape(n, 2, kv_heads, size)
        parameters = stored[:, :start].reshape(n, 2, kv_heads, self.format.parameter_bytes)
        return self._dequantise(parameters, codes)

    @abstractmethod
    def _quantise(self, wide: torch.Tensor, sound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """fp32 [n, 2, heads, d] within the saturation; where not `sound` [n, 2, heads, 1] a parameter is NaN.

        Returns parameters and codes, `parameter_bytes` and `code_bytes` of bytes for each head.
        """

    @abstractmethod
    def _dequantise(self, parameters: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """The inverse, from bytes [n, 2, heads, ...] to fp32 [n, 2, heads, d]."""


class ScaledCodec(_RecordCodec):
    """int8 and fp8: code times scale."""

    def __init__(self, name: str, codes: torch.dtype, largest: float) -> None:
        super().__init__(name)
        self._codes = codes
        self._largest = largest

    def _quantise(self, wide: torch.Tensor, sound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = (wide.abs().amax(-1, keepdim=True) / self._largest).clamp_min_(SMALLEST_STEP)
        steps = (wide / scale).clamp_(-self._largest, self._largest)
        codes = steps.round_() if self._codes is torch.int8 else steps
        return scale.where(sound, float("nan")), codes.to(self._codes)

    def _dequantise(self, parameters: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        return codes.view(self._codes).to(torch.float32) * parameters.view(torch.float32)


class Int4Codec(_RecordCodec):
    """Four bits over the spread of a head; byte j holds dimension j low and dimension j + d / 2 high."""

    def _quantise(self, wide: torch.Tensor, sound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # Adding +0 makes a zero's sign the same in whatever order the numbers were compared.
        low = wide.amin(-1, keepdim=True).add_(0.0).to(torch.bfloat16)
        base = low.to(torch.float32)
        high = wide.amax(-1, keepdim=True)
        spread = (high / INT4_STEPS - base / INT4_STEPS).clamp_min_(SMALLEST_STEP).to(torch.bfloat16)
        codes = ((wide - base) / spread.to(torch.float32)).round_().clamp_(0.0, INT4_STEPS).to(torch.uint8)
        half = codes.shape[-1] // 2
        packed = codes[..., :half] | (codes[..., half:] << 4)
        return torch.cat((spread.where(sound, float("nan")), low), -1), packed

    def _dequantise(self, parameters: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        numbers = parameters.view(torch.bfloat16).to(torch.float32)
        steps = torch.cat((codes & 15, codes >> 4), -1).to(torch.float32)
        return steps.mul_(numbers[..., :1]).add_(numbers[..., 1:])


def codec_of(dtype: torch.dtype) -> KVCodec:
    """The codec whose codes are of `dtype` (see code_type). Raises ConfigError."""
    if dtype is torch.float32:
        return DenseCodec("fp32", dtype)
    if dtype is torch.bfloat16:
        return DenseCodec("bf16", dtype)
    if dtype is torch.int8:
        return ScaledCodec("int8", dtype, INT8_STEPS)
    if dtype is torch.float8_e4m3fn:
        return ScaledCodec("fp8", dtype, E4M3_LARGEST)
    if dtype is _UINT4:
        return Int4Codec("int4")
    raise ConfigError(f"no KV codec stores {dtype}", field="kv_cache.format")


def code_type(name: str) -> torch.dtype:
    """The type of the codes of a KV format. Raises ConfigError for an unknown name."""
    types = {
        "fp32": torch.float32,
        "bf16": torch.bfloat16,
        "int8": torch.int8,
        "fp8": torch.float8_e4m3fn,
        "int4": _UINT4,
    }
    return types[kv_format(name).name]
