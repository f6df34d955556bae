"""Packed linears: a row's bits depend on nothing but the row, and its error is at most torch's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.compute.native.model import linear_struct

DTYPES = (torch.float32, torch.bfloat16)
ROWS = (*range(1, 65), 100, 512)


def noise(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_count_and_thread_count_gives_the_same_bits(contexts, library, dtype):
    weight = noise(200, 192, dtype=dtype)
    struct, keep = linear_struct(library, weight, noise(200, seed=1))
    x = noise(512, 192, seed=2, dtype=dtype).float()
    whole = contexts(1).linear(struct, x)
    assert torch.isfinite(whole).all()
    for threads in (1, 2, 4):
        for rows in ROWS:
            start = (512 - rows) // 3
            assert torch.equal(
                contexts(threads).linear(struct, x[start : start + rows]), whole[start : start + rows]
            )
    del keep


@pytest.mark.parametrize("dtype", DTYPES)
def test_2048_rows_and_any_cut_of_them(contexts, library, dtype):
    struct, keep = linear_struct(library, noise(70, 576, dtype=dtype))
    x = noise(2048, 576, seed=3, dtype=dtype).float()
    whole = contexts(2).linear(struct, x)
    for cut in (1, 47, 48, 49, 1000):
        parts = [contexts(4).linear(struct, x[:cut]), contexts(1).linear(struct, x[cut:])]
        assert torch.equal(torch.cat(parts), whole)
    del keep


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (100, 131)])
def test_the_error_against_float64_is_at_most_that_of_torch(context, library, isa, dtype, shape):
    n, k = shape
    # Portable code has no fused product and sum, so each step rounds twice.
    allowed = 1.25 if isa == "portable" else 1.0
    weight = noise(n, k, dtype=dtype) / k**0.5
    struct, keep = linear_struct(library, weight)
    for rows in (1, 16, 130):
        x = noise(rows, k, seed=rows, dtype=dtype)
        exact = x.double() @ weight.double().t()
        ours = (context.linear(struct, x.float()).double() - exact).square().mean().sqrt()
        theirs = ((x @ weight.t()).double() - exact).square().mean().sqrt()
        assert ours <= allowed * theirs
    del keep


def test_the_library_path_differs(library):
    """The inverse: were torch's own linear bitwise in its rows, the equalities above would prove nothing."""
    weight, x = noise(960, 576), noise(64, 576, seed=1)
    whole = x @ weight.t()
    assert any(not torch.equal(x[:rows] @ weight.t(), whole[:rows]) for rows in (1, 2, 3, 5, 7))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 200),
    k=st.integers(1, 300),
    rows=st.integers(1, 20),
    half=st.booleans(),
    bias=st.booleans(),
)
def test_any_shape_is_right_and_bitwise(contexts, library, n, k, rows, half, bias):
    dtype = torch.bfloat16 if half else torch.float32
    weight, offset = noise(n, k, dtype=dtype), noise(n, seed=1)
    struct, keep = linear_struct(library, weight, offset if bias else None)
    x = noise(rows, k, seed=2, dtype=dtype).float()
    ours = contexts(2).linear(struct, x)
    exact = x.double() @ weight.double().t() + (offset.double() if bias else 0.0)
    assert (ours.double() - exact).abs().max() <= 2.0**-18 * k**0.5 * (1 + exact.abs().max())
    for row in range(rows):
        assert torch.equal(contexts(1).linear(struct, x[row : row + 1])[0], ours[row])
    del keep


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_nan_or_infinity_harms_no_other_row(context, library, dtype):
    struct, keep = linear_struct(library, noise(130, 64, dtype=dtype))
    x = noise(9, 64, seed=1, dtype=dtype).float()
    clean = context.linear(struct, x)
    x[4] = float("nan")
    x[7] = float("inf")
    dirty = context.linear(struct, x)
    kept = [0, 1, 2, 3, 5, 6, 8]
    assert torch.equal(dirty[kept], clean[kept])
    assert torch.isnan(dirty[4]).all()
    assert not torch.isfinite(dirty[7]).any()
    del keep
