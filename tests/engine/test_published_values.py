"""The whole engine against values published elsewhere: known texts, and the arithmetic of the KV cache."""

from __future__ import annotations

import pytest

from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.intake.request import SamplingParams

# Greedy from BOS, 200 steps, as llama2.c publishes it for stories260K.
STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she "
    "saw a big, red ball. She wanted to play with it, but it was too high.\nLily's mom said, \"Lily, let's go to "
    "the park.\" Lily was sad and didn't know what to do. She said, \"I want to play with your ball, but I can't "
    "find it.\"\nLily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to do.\""
    "\nLily didn't want to help her mom, so she"
)
PARIS = [{"role": "user", "content": "What is the capital of France?"}]


def _engine(model: object, *overrides: str) -> Engine:
    return Engine(parse_overrides([f"model={model}", "threads.count=1", *overrides]))


@pytest.mark.parametrize("mode", ["fast", "invariant"])
@pytest.mark.parametrize("cache", ["true", "false"])
def test_stories260k_tells_its_published_story(stories260k, mode, cache):
    with _engine(stories260k, "dtype=fp32", f"numerics.mode={mode}", f"kv_cache.enabled={cache}") as engine:
        bos = engine.tokenizer.bos_token_id
        (output,) = engine.generate([[bos]], SamplingParams(max_tokens=200, ignore_eos=True))
        assert output.error is None
        assert len(output.token_ids) == 200
        assert output.text == STORY
        # n = 200 tokens from one: n (n + 1) / 2 computations without a cache, n with one.
        assert engine.counters()["tokens_computed"] == (200 if cache == "true" else 20_100)


@pytest.mark.smollm2
@pytest.mark.parametrize("mode", ["fast", "invariant"])
def test_smollm2_knows_the_capital_of_france(smollm2, mode):
    """In fp32: the first token's margin is 0.08, less than bfloat16 can tell apart in a logit of 25."""
    with _engine(smollm2, "dtype=fp32", f"numerics.mode={mode}") as engine:
        prompt = engine.tokenizer.apply_chat_template(PARIS)
        (output,) = engine.generate([prompt], SamplingParams(max_tokens=16))
        assert output.text == "The capital of France is Paris."
        assert output.finish_reason == "stop"


def test_stories260k_kv_bytes_per_token(stories260k):
    with _engine(stories260k, "dtype=bf16") as engine:
        assert engine.effective_config()["kv_cache.bytes_per_token"] == 640


@pytest.mark.smollm2
def test_smollm2_kv_bytes_per_token_are_written_and_reported(smollm2):
    with _engine(smollm2, "dtype=bf16") as engine:
        assert engine.effective_config()["kv_cache.bytes_per_token"] == 23_040
        engine.generate([[1, 2, 3]], SamplingParams(max_tokens=2, ignore_eos=True))
        # The last token is chosen and never run through the model, so it has no KV.
        assert engine.counters()["kv_bytes_written"] == (3 + 1) * 23_040
