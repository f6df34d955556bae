"""Both attentions against float64: at most twice the error of torch's own in the same dtype."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from intaglio.compute.attention import BLOCKED_KEYS, attend_fast, attend_tiled, exp_rows, visible

ATTENTIONS = {"fast": attend_fast, "tiled": attend_tiled}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# (queries, context, heads, kv heads, head dim, window)
CASES = [
    (1, 0, 4, 4, 32, None),
    (1, 200, 6, 2, 16, None),
    (1, 200, 6, 2, 16, 50),
    (16, 0, 9, 3, 64, None),
    (17, 47, 9, 3, 64, None),
    (33, 64, 4, 1, 32, None),
    (130, 0, 4, 2, 16, None),
    (130, 0, 4, 2, 16, 40),
    (5, 127, 8, 2, 24, 64),
    (70, 3, 2, 2, 8, 1),
]


def exact(q, k, v, context, window):
    """(out, lse) in float64, by definition."""
    n, heads, dim = q.shape
    groups = heads // k.shape[0]
    k64, v64 = (t.double().repeat_interleave(groups, 0) for t in (k, v))
    scores = torch.einsum("nhd,hld->hnl", q.double(), k64) / math.sqrt(dim)
    scores.masked_fill_(~visible(n, k.shape[1], context, 0, window, q.device), -math.inf)
    out = torch.einsum("hnl,hld->nhd", torch.softmax(scores, -1), v64)
    return out.reshape(n, heads * dim), torch.logsumexp(scores, -1).t()


def library(q, k, v, context, window):
    """torch's attention in the tensors' own dtype."""
    mask = visible(q.shape[0], k.shape[1], context, 0, window, q.device)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k[None], v[None], attn_mask=mask, enable_gqa=True
    )
    return out[0].transpose(0, 1).reshape(q.shape[0], -1)


def inputs(n, context, heads, kv_heads, dim, dtype, scale=1.0):
    draw = torch.Generator().manual_seed(n * 1000 + context)
    q = torch.randn(n, heads, dim, generator=draw) * scale
    k = torch.randn(kv_heads, context + n, dim, generator=draw) * scale
    v = torch.randn(kv_heads, context + n, dim, generator=draw)
    return q.to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_error_is_at_most_twice_that_of_the_library(name, dtype, case):
    n, context, heads, kv_heads, dim, window = case
    q, k, v = inputs(n, context, heads, kv_heads, dim, DTYPES[dtype])
    out, _ = ATTENTIONS[name](q, k, v, context, window)
    want, _ = exact(q, k, v, context, window)
    theirs = (library(q, k, v, context, window).double() - want).abs().max()
    ours = (out.double() - want).abs().max()
    assert out.dtype == q.dtype
    assert ours <= 2 * theirs + 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_lse_is_the_log_of_the_sum_of_exponentials(name, case):
    n, context, heads, kv_heads, dim, window = case
    q, k, v = inputs(n, context, heads, kv_heads, dim, torch.float32)
    _, lse = ATTENTIONS[name](q, k, v, context, window, True)
    _, want = exact(q, k, v, context, window)
    assert lse.shape == (n, heads)
    torch.testing.assert_close(lse.double(), want, atol=1e-5, rtol=1e-5)


def test_partial_results_merge_by_lse_into_the_whole():
    """What context parallelism and split keys will rest on."""
    q, k, v = inputs(1, 99, 4, 2, 32, torch.float32)
    whole, _ = exact(q, k, v, 99, None)
    parts = [attend_tiled(q, k[:, a:b], v[:, a:b], b - a - 1) for a, b in ((0, 37), (37, 100))]
    lses = torch.stack([lse for _, lse in parts])
    weights = torch.softmax(lses, 0)
    merged = sum(w.unsqueeze(-1) * out.view(1, 4, 32) for w, (out, _) in zip(weights, parts, strict=True))
    torch.testing.assert_close(merged.reshape(1, -1).double(), whole, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("n", [1, 20])
def test_large_scores_neither_overflow_nor_vanish(name, n):
    q, k, v = inputs(n, 80, 4, 2, 32, torch.float32, scale=10.0)
    out, lse = ATTENTIONS[name](q, k, v, 80, None, True)
    want, want_lse = exact(q, k, v, 80, None)
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out.double(), want, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(lse.double(), want_lse, atol=1e-3, rtol=1e-5)


def test_fast_attention_beyond_the_blocked_length_takes_the_library_path_and_agrees():
    n, context = 3, BLOCKED_KEYS
    q, k, v = inputs(n, context, 4, 2, 16, torch.float32)
    for window in (None, 100):
        out, _ = attend_fast(q, k, v, context, window)
        want, _ = exact(q, k, v, context, window)
        torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_keys_in_another_format_are_computed_in_the_queries_dtype(name):
    q, k, v = inputs(4, 30, 4, 2, 16, torch.float32)
    narrow_k, narrow_v = k.bfloat16(), v.bfloat16()
    out, _ = ATTENTIONS[name](q, narrow_k, narrow_v, 30)
    want, _ = exact(q, narrow_k, narrow_v, 30, None)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-4)


def test_exp_rows_gives_a_row_the_same_bits_wherever_it_stands():
    rows = torch.randn(700, 64, generator=torch.Generator().manual_seed(3))
    whole = exp_rows(rows.clone())
    torch.testing.assert_close(whole.double(), rows.double().exp(), rtol=1e-6, atol=0)
    for start, stop in ((0, 1), (5, 37), (300, 700), (0, 512)):
        assert torch.equal(exp_rows(rows[start:stop].clone()), whole[start:stop])
