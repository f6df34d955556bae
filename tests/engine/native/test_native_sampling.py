"""Native sampling chooses the sampler's own tokens: same logits, same settings, same random numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.compute.native import chooser
from intaglio.intake.step_plan import SampleSpec
from intaglio.output.sampler import choose_token

INFINITE = float("inf")


def logits(vocab, seed, kind):
    """Rows as models make them, rows full of ties, rows of few values, and rows with impossible tokens."""
    draw = torch.Generator().manual_seed(seed)
    row = 3 * torch.randn(vocab, generator=draw)
    if kind == "ties":
        return row.round()
    if kind == "flat":
        return torch.zeros(vocab)
    if kind == "impossible":
        row[torch.rand(vocab, generator=draw) < 0.6] = -INFINITE
        row[seed % vocab] = 1.0
    if kind == "peaked":
        row[seed % vocab] += 40.0
    return row


def specs(vocab):
    return st.builds(
        SampleSpec,
        temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.7]),
        top_k=st.sampled_from([0, 1, 2, 5, 40, 3000, 1 << 20]),
        top_p=st.sampled_from([1.0, 0.99, 0.9, 0.5, 0.1, 1e-6]),
        min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
        seed=st.integers(-5, (1 << 65)),
        sample_index=st.integers(0, 1 << 33),
        position=st.integers(0, 1 << 33),
        logprobs=st.sampled_from([None, None, 0, 1, 5, 20]),
        history=st.lists(st.integers(0, vocab - 1), max_size=12).map(tuple),
    )


@pytest.mark.parametrize("kind", ["usual", "ties", "flat", "impossible", "peaked"])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1 << 20), vocab=st.sampled_from([1, 2, 17, 260, 1025, 6000]))
def test_every_setting_chooses_the_sampler_s_token(contexts, kind, data, seed, vocab):
    rows = torch.stack([logits(vocab, seed + i, kind) for i in range(3)])
    wanted = [(data.draw(st.integers(0, 2)), data.draw(specs(vocab))) for _ in range(4)]
    ours = chooser.choose(contexts(2), rows, wanted)
    alone = [chooser.choose(contexts(1), rows, [one])[0] for one in wanted]
    assert ours == alone
    for (row, spec), choice in zip(wanted, ours):
        theirs = choose_token(rows[row], spec)
        assert (choice.token, choice.margin, choice.error) == (theirs.token, theirs.margin, "")
        assert choice.logprob == pytest.approx(theirs.logprob, abs=1e-5)
        assert [token for token, _ in choice.top] == [token for token, _ in theirs.top]
        assert [p for _, p in choice.top] == pytest.approx([p for _, p in theirs.top], abs=1e-5)


def test_draws_follow_the_distribution_and_differ_by_position(contexts):
    row = torch.tensor([[0.0, 1.0, 2.0, -INFINITE]])
    count = 4000
    picks = [(0, SampleSpec(temperature=1.0, seed=9, position=i)) for i in range(count)]
    tokens = [choice.token for choice in chooser.choose(contexts(2), row, picks)]
    shares = torch.softmax(row[0], 0).tolist()
    for token, share in enumerate(shares):
        spread = 4 * math.sqrt(share * (1 - share) / count)
        assert abs(tokens.count(token) / count - share) <= spread


@pytest.mark.parametrize("bad", [float("nan"), INFINITE])
@pytest.mark.parametrize(
    "spec", [SampleSpec(), SampleSpec(temperature=0.7, top_p=0.9), SampleSpec(logprobs=3)]
)
def test_logits_that_are_no_numbers_are_that_row_s_error(contexts, bad, spec):
    rows = torch.stack([logits(300, 1, "usual"), logits(300, 2, "usual")])
    good = chooser.choose(contexts(2), rows, [(1, spec)])
    rows[0, 123] = bad
    spoiled, whole = chooser.choose(contexts(2), rows, [(0, spec), (1, spec)])
    assert "not finite" in spoiled.error
    assert [whole] == good
    rows[0] = -INFINITE
    assert "not finite" in chooser.choose(contexts(2), rows, [(0, spec)])[0].error
