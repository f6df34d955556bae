"""Paged attention: prefill and decode agree bit for bit, tails are never read, and the error is at most torch's."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.compute.native.ops import attend, attend_paged

DTYPES = (torch.float32, torch.bfloat16)
NAN = float("nan")


def noise(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(q, kv, context, window=None):
    """(out, lse) in float64 by the definition."""
    n, heads, dim = q.shape
    length, groups = kv.shape[0], heads // kv.shape[2]
    keys, values = (kv[:, i].double().repeat_interleave(groups, 1) for i in (0, 1))
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) / math.sqrt(dim)
    at, key = torch.arange(context, context + n)[:, None], torch.arange(length)[None]
    seen = key <= at
    if window:
        seen &= key > at - window
    scores.masked_fill_(~seen, -math.inf)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out, torch.logsumexp(scores, -1).t()


def close(ours, truth, bits):
    return bool((ours.double() - truth).abs().max() <= 2.0**-bits * truth.abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(9, 3, 64), (4, 4, 8), (6, 2, 80), (8, 1, 128), (6, 1, 96)])
@pytest.mark.parametrize("window", [None, 37])
def test_prefill_chunks_and_decode_give_each_query_the_same_bits(contexts, dtype, sizes, window):
    heads, kv_heads, dim = sizes
    total = 150
    q, kv = noise(total, heads, dim, dtype=dtype).float(), noise(total, 2, kv_heads, dim, seed=1, dtype=dtype)
    out, lse = attend(contexts(1), q, kv, 0, window)
    truth = exact(q, kv, 0, window)
    assert close(out, truth[0], 18 if dtype == torch.float32 else 6)
    assert close(lse, truth[1], 18 if dtype == torch.float32 else 9)
    for chunk in (1, 2, 5, 33, 64, 149):
        for start in range(0, total, chunk):
            rows = slice(start, start + chunk)
            part = attend(contexts(2 if chunk % 2 else 4), q[rows], kv[: start + chunk], start, window)
            assert torch.equal(part[0], out[rows])
            assert torch.equal(part[1], lse[rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [7, 16, 32])
def test_many_decoding_rows_at_once_equal_each_alone(contexts, dtype, size):
    """More rows than threads are computed as one task each, fewer as one task per head: the bits are the same, and
    those of a prefill; read in place where blocks hold whole runs of 16 tokens, else copied together."""
    heads, kv_heads, dim = 6, 3, 64
    lengths = [1, 2, 17, 63, 64, 65, 100, 128, 130]
    blocks = -(-130 // size)
    store = noise(2, 9 * blocks * size, 2, kv_heads, dim, dtype=dtype)
    q = noise(len(lengths), heads, dim, seed=1, dtype=dtype).float()
    rows = [(i, 1, n - 1, range(blocks * i, blocks * (i + 1))) for i, n in enumerate(lengths)]
    for layer in (0, 1):
        together = attend_paged(contexts(2), q, store, rows, block_tokens=size, layer=layer)
        for threads in (1, 2, 4):
            for i, row in enumerate(rows):
                alone = attend_paged(contexts(threads), q, store, [row], block_tokens=size, layer=layer)
                assert torch.equal(alone[0][i], together[0][i])
                assert torch.equal(alone[1][i], together[1][i])
        for i, n in enumerate(lengths):
            kv = store[layer, blocks * i * size :][:n].contiguous()
            padding = torch.zeros(n - 1, heads, dim)
            prefilled = attend(contexts(2), torch.cat([padding, q[i : i + 1]]), kv, 0)
            assert torch.equal(prefilled[0][n - 1], together[0][i])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_error_against_float64_is_at_most_that_of_torch(context, dtype):
    q, kv = noise(130, 9, 64, dtype=dtype), noise(130, 2, 3, 64, seed=1, dtype=dtype)
    ours = attend(context, q.float(), kv, 0)[0]
    keys, values = (kv[:, i].transpose(0, 1) for i in (0, 1))
    theirs = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], is_causal=True, enable_gqa=True
    )[0].transpose(0, 1)
    truth = exact(q, kv, 0)[0]
    error, bound = ((x.double() - truth).square().mean().sqrt() for x in (ours, theirs))
    assert error <= bound


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_block_table_reads_only_what_its_queries_see(contexts, data):
    """Everything outside the visible keys is NaN: block tails, foreign blocks, keys behind a window."""
    dtype = data.draw(st.sampled_from(DTYPES))
    kv_heads, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    dim = 2 * data.draw(st.integers(1, 70))
    size = data.draw(st.sampled_from([1, 3, 7, 16, 64, 100]))
    context, count = data.draw(st.integers(0, 150)), data.draw(st.integers(1, 40))
    window = data.draw(st.one_of(st.none(), st.integers(1, 80)))
    length = context + count
    blocks = -(-length // size)
    table = data.draw(st.permutations(range(blocks + 3)))[:blocks]
    q = noise(count, kv_heads * groups, dim, dtype=dtype).float()
    kv = noise(length, 2, kv_heads, dim, seed=1, dtype=dtype)
    store = torch.full((1, (blocks + 3) * size, 2, kv_heads, dim), NAN, dtype=dtype)
    first = 0 if window is None else max(0, context - window + 1)
    for position in range(first, length):
        store[0, table[position // size] * size + position % size] = kv[position]
    threads = data.draw(st.sampled_from([1, 2]))
    out, lse = attend_paged(
        contexts(threads), q, store, [(0, count, context, table)], block_tokens=size, window=window
    )
    truth = exact(q, kv, context, window)
    assert close(out, truth[0], 17 if dtype == torch.float32 else 5)
    assert torch.isfinite(lse).all()
    straight = attend(contexts(1), q, kv, context, window)
    assert torch.equal(out, straight[0])
    assert torch.equal(lse, straight[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_key_is_seen_by_its_own_row_alone(context, dtype):
    q, store = noise(3, 2, 16, dtype=dtype).float(), noise(1, 96, 2, 1, 16, seed=1, dtype=dtype)
    rows = [(i, 1, 20, (2 * i, 2 * i + 1)) for i in range(3)]
    clean = attend_paged(context, q, store, rows, block_tokens=16)[0]
    store[0, 32 + 5] = NAN
    dirty = attend_paged(context, q, store, rows, block_tokens=16)[0]
    assert torch.isnan(dirty[1]).all()
    assert torch.equal(dirty[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_neither_overflow_nor_vanish(context, dtype):
    q, kv = 60 * noise(40, 2, 32, dtype=dtype).float(), 60 * noise(40, 2, 1, 32, seed=1, dtype=dtype)
    out, lse = attend(context, q, kv.to(dtype), 0)
    assert torch.isfinite(out).all()
    assert close(out, exact(q, kv.to(dtype), 0)[0], 16 if dtype == torch.float32 else 5)
    assert torch.isfinite(lse).all()
