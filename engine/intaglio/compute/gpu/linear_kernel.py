"""A Triton linear whose additions per output are the same for any number of rows: one tile shape, inputs in order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def fixed_linear(
    x,
    weight,
    bias,
    out,
    rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """out = x weight^T + bias with fp32 sums. Grid (OUT / OUTPUTS, rows / ROWS), both rounded up.

    x [rows, IN], weight [OUT, IN], out [rows, OUT], all without gaps. Rows past the end are zeros and are not stored.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    present, wanted = row < rows, output < OUT
    x_rows = x + row.to(tl.int64)[:, None] * IN
    w_rows = weight + output.to(tl.int64)[None, :] * IN
    acc = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for start in range(0, IN, INPUTS):
        column = start + tl.arange(0, INPUTS)
        inside = column < IN
        a = tl.load(x_rows + column[None, :], mask=present[:, None] & inside[None, :], other=0.0)
        b = tl.load(w_rows + column[:, None], mask=inside[:, None] & wanted[None, :], other=0.0)
        if WIDE:
            a, b = a.to(tl.float32), b.to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    if BIASED:
        acc += tl.load(bias + output, mask=wanted, other=0.0).to(tl.float32)[None, :]
    keep = present[:, None] & wanted[None, :]
    where = out + row.to(tl.int64)[:, None] * OUT + output[None, :]
    tl.store(where, acc.to(out.dtype.element_ty), mask=keep)
