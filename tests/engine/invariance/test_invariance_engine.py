"""Invariant mode through the whole engine: cache, chunking and companions change no token and no logit."""

from __future__ import annotations

import numpy as np
import pytest

from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.intake.request import SamplingParams

DTYPES = ("fp32", "bf16")
GREEDY = SamplingParams(max_tokens=16, ignore_eos=True)


def engine(model, dtype, *overrides):
    fixed = [f"model={model}", f"dtype={dtype}", "numerics.mode=invariant", "threads.count=1"]
    return Engine(parse_overrides([*fixed, *overrides]))


def text(count, seed=0):
    return np.random.default_rng(seed).integers(3, 500, count).tolist()


def assert_same(ours, theirs):
    assert ours.error is None
    assert theirs.error is None
    assert ours.token_ids == theirs.token_ids
    assert len(ours.logits) == len(theirs.logits) == len(ours.token_ids)
    assert all(np.array_equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_hundred_tokens_from_one_cost_100_or_5050_computations_and_are_equal(tiny_model, dtype):
    outputs = {}
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    for cache, cost in (("true", 100), ("false", 5050)):
        with engine(tiny_model, dtype, f"kv_cache.enabled={cache}") as run:
            (outputs[cache],) = run.generate([[0]], params, return_logits=True)
            assert run.counters()["tokens_computed"] == cost
    assert len(outputs["true"].token_ids) == 100
    assert_same(outputs["true"], outputs["false"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_chunks_do_not_change_a_bit(tiny_model, dtype):
    prompt, outputs, steps = text(75), [], []
    for chunk in (1, 2, 5, 16, 33, 75):
        with engine(tiny_model, dtype, f"scheduler.prefill_chunk={chunk}") as run:
            outputs.extend(run.generate([prompt], GREEDY, return_logits=True))
            steps.append(run.counters()["steps"])
            assert run.counters()["tokens_computed"] == 75 + 15
    assert steps == [-(-75 // chunk) + 15 for chunk in (1, 2, 5, 16, 33, 75)]
    for output in outputs[1:]:
        assert_same(output, outputs[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache", ["true", "false"])
def test_companions_do_not_change_a_bit(tiny_model, dtype, cache):
    prompts = [text(10 + 7 * i, seed=i) for i in range(6)]
    params = [
        SamplingParams(max_tokens=6 + 2 * i, ignore_eos=True, temperature=0.8 * (i % 2), seed=i)
        for i in range(6)
    ]
    with engine(tiny_model, dtype, f"kv_cache.enabled={cache}") as run:
        alone = [run.generate([p], [q], return_logits=True)[0] for p, q in zip(prompts, params, strict=True)]
        steps = run.counters()["steps"]
        together = run.generate(prompts, params, return_logits=True)
        assert run.counters()["steps"] - steps == max(q.max_tokens for q in params)
        crowded = run.generate(prompts[::-1], params[::-1], return_logits=True)[::-1]
    for a, b, c in zip(alone, together, crowded, strict=True):
        assert_same(a, b)
        assert_same(a, c)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_needle_keeps_its_bits_in_any_haystack_up_to_128(tiny_model, dtype):
    """Field case 24: one request, greedy and sampled, among up to 127 others of random lengths and settings."""
    needles = [SamplingParams(max_tokens=4, ignore_eos=True, temperature=t, seed=7) for t in (0.0, 0.9)]
    draw = np.random.default_rng(24)
    with engine(tiny_model, dtype, "scheduler.max_running=128") as run:
        alone = [run.generate([text(21)], [needle], return_logits=True)[0] for needle in needles]
        for batch in (2, 3, 9, 16, 17, 44, 64, 101, 128):
            others = [text(int(draw.integers(1, 40)), seed=batch + i) for i in range(batch - 1)]
            params = [
                SamplingParams(max_tokens=4, ignore_eos=True, temperature=float(draw.integers(2)), seed=i)
                for i in range(batch - 1)
            ]
            at = int(draw.integers(batch))
            for needle, expected in zip(needles, alone, strict=True):
                prompts, settings = others.copy(), params.copy()
                prompts.insert(at, text(21))
                settings.insert(at, needle)
                run.drain_gauges()
                found = run.generate(prompts, settings, return_logits=True)
                assert max(gauges["running"] for _, gauges in run.drain_gauges()) == batch
                assert_same(found[at], expected)
