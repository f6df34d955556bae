"""Packed linears: a row's bits depend on nothing but the row, and its error is at most torch's."""

from __future__ import annotations

import gguf
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.compute.native import structs
from intaglio.compute.native.formats import FORMATS, encode
from intaglio.compute.native.model import linear_struct
from intaglio.errors import ConfigError

DTYPES = (torch.float32, torch.bfloat16)
ROWS = (*range(1, 65), 100, 512)


def noise(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def decoded(weight, form):
    """What an encoded weight stands for, dense in fp32."""
    coded = encode(weight, form)
    if form == structs.INT8:
        return coded.data.float() * coded.scales[:, None]
    if form in (structs.FP32, structs.BF16):
        return coded.data.float()
    kind = {structs.Q8_0: gguf.GGMLQuantizationType.Q8_0, structs.Q4_1: gguf.GGMLQuantizationType.Q4_1}[form]
    return torch.from_numpy(gguf.quants.dequantize(coded.data.numpy(), kind))


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("rounded", [True, False])
def test_every_row_count_and_thread_count_gives_the_same_bits(contexts, library, form, rounded):
    struct, keep = linear_struct(library, noise(200, 192), noise(200, seed=1), form)
    x = noise(512, 192, seed=2)
    whole = contexts(1).linear(struct, x, rounded=rounded)
    assert torch.isfinite(whole).all()
    for threads in (1, 2, 4):
        for rows in ROWS if threads == 2 else (1, 2, 3, 4, 5, 7, 16, 64, 512):
            start = (512 - rows) // 3
            part = contexts(threads).linear(struct, x[start : start + rows], rounded=rounded)
            assert torch.equal(part, whole[start : start + rows])
    del keep


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_2048_rows_and_any_cut_of_them(contexts, library, form):
    struct, keep = linear_struct(library, noise(70, 576), form=form)
    x = noise(2048, 576, seed=3)
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


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 200),
    k=st.integers(1, 300),
    rows=st.integers(1, 20),
    form=st.sampled_from(list(FORMATS.values())),
    bias=st.booleans(),
    rounded=st.booleans(),
)
def test_any_shape_is_right_and_bitwise(contexts, library, n, k, rows, form, bias, rounded):
    if form in (structs.Q8_0, structs.Q4_1):
        k = -(-k // 32) * 32
    weight, offset = noise(n, k), noise(n, seed=1)
    struct, keep = linear_struct(library, weight, offset if bias else None, form)
    x = noise(rows, k, seed=2, dtype=torch.bfloat16).float()
    ours = contexts(2).linear(struct, x, rounded=rounded)
    exact = x.double() @ decoded(weight, form).double().t() + (offset.double() if bias else 0.0)
    assert (ours.double() - exact).abs().max() <= 2.0**-18 * k**0.5 * (1 + exact.abs().max())
    for row in range(rows):
        assert torch.equal(contexts(1).linear(struct, x[row : row + 1], rounded=rounded)[0], ours[row])
    del keep


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_rows_come_back_as_they_were_encoded(library, form):
    """A tied embedding reads rows out of the panels; GGUF's blocks must come back bit for bit."""
    weight = noise(130, 96)
    struct, keep = linear_struct(library, weight, form=form)
    ids = torch.tensor([0, 63, 64, 129, 5], dtype=torch.int32)
    rows = torch.empty(5, 96)
    assert library.calls.ig_unpack_rows(rows.data_ptr(), struct, ids.data_ptr(), 5) == 0
    assert torch.equal(rows, decoded(weight, form)[ids.long()])
    del keep


def test_encoding_what_was_decoded_gives_the_same_codes():
    """So that a checkpoint dequantised from GGUF is held in the file's own blocks again."""
    for form in (structs.Q8_0, structs.Q4_1):
        first = decoded(noise(64, 256), form)
        assert torch.equal(decoded(first, form), first)


def test_weights_that_are_not_made_of_whole_blocks_are_refused(library):
    with pytest.raises(ConfigError, match="int8"):
        encode(noise(4, 40), structs.Q4_1)
    assert library.calls.ig_pack(0, 0, 4, 40, structs.Q8_0, 0, 1) == -1


def test_zero_and_tiny_weights_encode_without_dividing_by_zero():
    weight = torch.zeros(3, 32)
    weight[1] = 1e-42
    weight[2, 5] = 3.0
    coded = encode(weight, structs.INT8)
    assert torch.isfinite(coded.scales).all()
    assert torch.equal(decoded(weight, structs.INT8)[[0, 2]], weight[[0, 2]])


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
