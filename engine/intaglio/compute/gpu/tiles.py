"""Sizes of the Triton kernels' tiles: constants, never tuned at run time, because an order of additions hangs on them."""

from __future__ import annotations

# Keys of one step of the online softmax, at absolute positions.
KEY_TILE = 64
# Rows (queries x the heads that share a kv head) of one attention tile: a decode step fills few of them.
DECODE_ROWS = 16
PREFILL_ROWS = 64
# Keys of one split in invariant mode: a split starts at a multiple of this, whatever the batch.
SPLIT_KEYS = 512
# Rows, outputs and inputs of one product of the invariant linear.
LINEAR_ROWS = 64
LINEAR_OUTPUTS = 32
LINEAR_INPUTS = 64
# Elements of one program of the gated activation.
GATED_COLUMNS = 1024
WARPS = 4
MAX_HEAD_DIM = 256


def padded(count: int) -> int:
    """The least power of two that holds `count` and that a tensor core takes."""
    return max(16, 1 << (count - 1).bit_length())
