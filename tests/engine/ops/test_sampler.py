"""The sampler's tables, its distribution, and that a row's choice is its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from intaglio.intake.step_plan import SampleSpec
from intaglio.output.sampler import choose_token, kept_tokens, sample

WARM = SampleSpec(temperature=1.0)


def logits_of(probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log().float()


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


KEPT = [
    ([0.1, 0.2, 0.3, 0.4], {"top_p": 0.6}, [3, 2]),
    ([0.1, 0.2, 0.3, 0.4], {"top_p": 0.41}, [3, 2]),
    ([0.1, 0.2, 0.3, 0.4], {"top_p": 0.39}, [3]),
    ([0.1, 0.2, 0.3, 0.4], {"top_p": 1e-9}, [3]),
    ([0.1, 0.2, 0.3, 0.4], {"top_p": 0.95}, [3, 2, 1, 0]),
    ([0.1, 0.2, 0.3, 0.4], {"top_k": 2}, [3, 2]),
    ([0.1, 0.2, 0.3, 0.4], {"top_k": 99}, [3, 2, 1, 0]),
    ([0.1, 0.2, 0.3, 0.4], {"min_p": 0.6}, [3, 2]),
    ([0.1, 0.2, 0.3, 0.4], {"min_p": 0.99}, [3]),
    # top-p counts the mass that top-k left: 0.4 / 0.7 reaches 0.5 alone.
    ([0.1, 0.2, 0.3, 0.4], {"top_k": 2, "top_p": 0.5}, [3]),
    ([0.1, 0.2, 0.3, 0.4], {"top_k": 3, "top_p": 0.7, "min_p": 0.5}, [3, 2]),
    # Equals: the lower id comes first and is the one that stays.
    ([0.25, 0.25, 0.25, 0.25], {"top_k": 2}, [0, 1]),
    ([0.1, 0.4, 0.1, 0.4], {"top_k": 1}, [1]),
    ([0.25, 0.25, 0.25, 0.25], {"top_p": 0.3}, [0, 1]),
]


@pytest.mark.parametrize("probabilities, fields, want", KEPT)
def test_which_tokens_are_kept(probabilities, fields, want):
    ids, probs = kept_tokens(logits_of(probabilities), WARM._replace(**fields))
    assert ids.tolist() == want
    assert (probs[:-1] >= probs[1:]).all()


def test_temperature_sharpens_and_flattens():
    row = logits_of([0.2, 0.8])
    for temperature in (0.5, 2.0):
        _, probs = kept_tokens(row, WARM._replace(temperature=temperature, top_k=2))
        odds = (0.8 / 0.2) ** (1 / temperature)
        assert probs[0].item() / probs[1].item() == pytest.approx(odds, rel=1e-6)


@pytest.mark.parametrize(
    "fields", [{"top_p": 0.9}, {"top_p": 0.999}, {"min_p": 0.05}, {"min_p": 1e-7}], ids=str
)
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_a_large_vocabulary_keeps_what_a_full_sort_keeps(fields, spread):
    row = torch.randn(20_000, generator=torch.Generator().manual_seed(1)) * spread
    ids, _ = kept_tokens(row, WARM._replace(**fields))
    scaled = row.double().numpy()
    order = np.lexsort((np.arange(row.shape[0]), -scaled))
    probs = np.exp(scaled - scaled.max())
    probs = (probs / probs.sum())[order]
    keep = row.shape[0]
    if "top_p" in fields:
        keep = max(1, int((probs.cumsum() - probs < fields["top_p"]).sum()))
    if "min_p" in fields:
        keep = min(keep, int((probs >= fields["min_p"] * probs[0]).sum()))
    assert abs(ids.shape[0] - keep) <= 1  # one token's rounding at the edge
    shared = min(keep, ids.shape[0])
    assert ids.tolist()[:shared] == order[:shared].tolist()


def test_greedy_takes_the_lowest_id_among_equals_and_equals_top_k_one():
    row = torch.tensor([1.0, 3.0, 3.0, 2.0])
    assert choose_token(row, SampleSpec()).token == 1
    for seed in range(50):
        wide = noise(997, seed=seed).round()  # rounding makes ties
        greedy = choose_token(wide, SampleSpec()).token
        assert greedy == int((wide == wide.max()).nonzero()[0])
        narrow = SampleSpec(temperature=0.7, top_k=1, seed=seed, position=seed)
        assert choose_token(wide, narrow).token == greedy


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.3}], ids=str
)
def test_draws_follow_the_distribution(fields):
    row = logits_of([0.05, 0.3, 0.1, 0.35, 0.2])
    spec = WARM._replace(**fields)
    ids, probs = kept_tokens(row, spec)
    total = 4000
    drawn = [choose_token(row, spec._replace(seed=1, position=i)).token for i in range(total)]
    counts = [drawn.count(token) for token in ids.tolist()]
    assert sum(counts) == total  # nothing outside what is kept
    expected = (probs / probs.sum() * total).tolist()
    if len(counts) > 1:
        assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_a_row_is_the_same_alone_and_among_others():
    rows = noise(7, 3001, seed=5)
    specs = [
        SampleSpec(position=3, logprobs=4),
        SampleSpec(temperature=1.0, seed=1),
        SampleSpec(temperature=0.6, top_k=20, seed=2, position=9),
        SampleSpec(temperature=1.3, top_p=0.7, seed=2, position=9),
        SampleSpec(temperature=1.0, min_p=0.1, seed=3, sample_index=2),
        SampleSpec(repetition_penalty=1.5, history=(1, 5, 5)),
        SampleSpec(temperature=1.0, seed=1),
    ]
    together = sample(rows, specs)
    order = [4, 2, 6, 0, 1, 5, 3]
    shuffled = sample(rows[order], [specs[i] for i in order])
    for place, index in enumerate(order):
        assert shuffled[place] == together[index]
        assert choose_token(rows[index].clone(), specs[index]) == together[index]


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    row = torch.tensor([2.0, 1.9, -1.0, -1.1])
    assert choose_token(row, SampleSpec(repetition_penalty=1.2, history=(0,))).token == 1
    assert choose_token(row, SampleSpec(repetition_penalty=1.2)).token == 0
    down = torch.tensor([-1.0, -1.1])
    assert choose_token(down, SampleSpec(repetition_penalty=1.2, history=(0, 0))).token == 1
    assert choose_token(down, SampleSpec(repetition_penalty=0.5, history=(1,))).token == 1
    warm = WARM._replace(repetition_penalty=4.0, history=(0,), top_k=1)
    assert choose_token(row, warm).token == 1


def test_logprobs_and_margins_are_of_the_raw_logits():
    row = noise(501, seed=8)
    spec = SampleSpec(temperature=0.3, top_k=5, repetition_penalty=2.0, history=(3,), logprobs=3, seed=4)
    choice = choose_token(row, spec)
    exact = torch.log_softmax(row.double(), 0)
    assert choice.logprob == pytest.approx(exact[choice.token].item(), abs=1e-5)
    best = row.double().sort(descending=True).values
    assert choice.margin == pytest.approx((best[0] - best[1]).item(), abs=1e-6)
    assert [token for token, _ in choice.top] == row.topk(3).indices.tolist()
    assert [p for _, p in choice.top] == pytest.approx(exact.topk(3).values.tolist(), abs=1e-5)
    assert choose_token(row, SampleSpec(logprobs=0)).top == ()
    assert choose_token(row, SampleSpec()).top == ()


def test_margin_of_equals_is_zero_and_of_one_token_infinite():
    assert choose_token(torch.tensor([1.0, 5.0, 5.0]), SampleSpec()).margin == 0.0
    assert choose_token(torch.tensor([1.0]), SampleSpec()).margin == math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "spec", [SampleSpec(), WARM, WARM._replace(top_k=2)], ids=["greedy", "warm", "top_k"]
)
def test_a_row_that_is_not_finite_is_an_error_and_its_neighbour_is_not(bad, spec):
    rows = noise(2, 40, seed=9)
    rows[0, 17] = bad
    broken, sound = sample(rows, [spec, spec])
    assert "not finite" in broken.error
    assert sound.error == ""
    assert 0 <= sound.token < 40


def test_a_token_of_probability_zero_is_never_drawn():
    row = torch.full((50,), -math.inf)
    row[[4, 30]] = 0.0
    drawn = {choose_token(row, WARM._replace(seed=2, position=i)).token for i in range(200)}
    assert drawn == {4, 30}
