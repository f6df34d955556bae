"""Norms, SiLU times up and the best token against float64, for widths with and without a tail."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st


def noise(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def near(ours, truth, bits=21):
    return bool(((ours.double() - truth).abs() <= 2.0**-bits * (truth.abs() + truth.abs().mean())).all())


@pytest.mark.parametrize("width", [1, 2, 7, 16, 33, 63, 64, 65, 576, 1000])
def test_rms_norm(context, width):
    x, weight = noise(5, width, scale=3), noise(width, seed=1)
    truth = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    whole = context.rms_norm(x, weight, 1e-5)
    assert near(whole, truth)
    for row in range(5):
        assert torch.equal(context.rms_norm(x[row : row + 1], weight, 1e-5)[0], whole[row])


def test_swiglu_over_the_whole_range_and_at_every_place(context):
    gate = torch.cat([torch.linspace(-120, 120, 4001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 3e38, -3e38])])
    up = torch.ones_like(gate)
    ours, truth = context.swiglu(gate, up), F.silu(gate.double())
    assert ((ours.double() - truth).abs() <= 2.0**-21 * truth.abs() + 2.0**-120).all()
    for start in range(1, 40):
        assert torch.equal(context.swiglu(gate[start:].contiguous(), up[start:]), ours[start:])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(vocab=st.integers(2, 300), seed=st.integers(0, 1000), ties=st.booleans())
def test_top_takes_the_lowest_of_equal_best_tokens(context, vocab, seed, ties):
    logits = noise(3, vocab, seed=seed, scale=5)
    if ties:
        logits = logits.round()
    best, values = context.top(logits)
    assert best == [int(torch.nonzero(row == row.max())[0]) for row in logits]
    assert torch.equal(values[:, :2], torch.topk(logits, 2).values)
    assert near(values[:, 2], torch.logsumexp(logits.double(), -1), 20)


def test_top_of_rows_without_numbers(context):
    best, values = context.top(torch.full((1, 20), float("nan")))
    assert best == [-1]
    assert not torch.isfinite(values[0, 2])
