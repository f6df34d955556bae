"""Weight formats of the native kernels, and dense weights into them.

int8 holds a scale per output; q8_0 and q4_1 are GGUF's blocks of 32 inputs, quantised by the gguf package: weights that
were decoded from such blocks of a GGUF file become the same blocks again, value for value. Only weights are quantised, activations never.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from intaglio.compute.native import structs
from intaglio.errors import ConfigError

FORMATS = {
    "fp32": structs.FP32,
    "bf16": structs.BF16,
    "int8": structs.INT8,
    "q8_0": structs.Q8_0,
    "q4_1": structs.Q4_1,
}
BLOCK = 32
_DENSE = {structs.FP32: torch.float32, structs.BF16: torch.bfloat16}
_INT8_STEPS = 127


@dataclass(frozen=True, slots=True)
class Coded:
    """Rows of one weight as the packer takes them; `scales` fp32 [n] for int8."""

    data: torch.Tensor
    scales: torch.Tensor | None


def head_format(form: int) -> int:
    """How the head (and a tied embedding) is held: under q4_1 in q8_0, as GGUF files of that type have it."""
    return structs.Q8_0 if form == structs.Q4_1 else form


def encode(weight: torch.Tensor, form: int) -> Coded:
    """Dense [n, k] into a format. Raises ConfigError where k is not made of whole blocks."""
    if form in _DENSE:
        return Coded(weight.to(_DENSE[form]).contiguous(), None)
    if form == structs.INT8:
        wide = weight.to(torch.float32)
        scales = (wide.abs().amax(1) / _INT8_STEPS).clamp_min(torch.finfo(torch.float32).tiny)
        codes = (wide / scales[:, None]).round().clamp(-_INT8_STEPS, _INT8_STEPS).to(torch.int8)
        return Coded(codes.contiguous(), scales)
    if weight.shape[1] % BLOCK:
        raise ConfigError(
            f"a weight of {weight.shape[1]} inputs is not made of blocks of {BLOCK}; use weights.format=int8",
            field="weights.format",
        )
    import gguf

    kind = gguf.GGMLQuantizationType.Q8_0 if form == structs.Q8_0 else gguf.GGMLQuantizationType.Q4_1
    blocks = gguf.quants.quantize(weight.to(torch.float32).contiguous().numpy(), kind)
    return Coded(torch.from_numpy(blocks).contiguous(), None)
