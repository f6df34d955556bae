"""Logits and greedy tokens against transformers, on tiny random models that it saves and on SmolLM2.

Teacher-forced over 64 positions in fp32. A greedy token is only compared where the reference's best logit leads
by more than 1e-3: closer than that, rounding may decide. How many were compared is asserted.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

POSITIONS = 64
MARGIN = 1e-3
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 259,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
SLIDING = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
MODELS = {
    "llama": ("Llama", {}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-rope3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-rope-linear": ("Llama", {"rope_parameters": LINEAR, "num_key_value_heads": 4}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 24}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", SLIDING),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": False}),
    "qwen3-tied": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request, tmp_path_factory):
    """(folder, transformers' model) of one tiny configuration, saved by transformers."""
    import transformers

    family, changes = MODELS[request.param]
    config = getattr(transformers, f"{family}Config")(**(SIZES | changes))
    torch.manual_seed(5)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 1.2 / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 0.1
            noise = torch.randn_like(parameter) * spread
            parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return folder, model


def reference(model, tokens):
    """fp32 logits [n, vocab] of every position, in one pass without a cache."""
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


def text(vocabulary):
    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, vocabulary, (POSITIONS,), generator=draw).tolist()


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-4)


def assert_same_choices(ours, theirs, least):
    """The best tokens agree wherever the reference is sure; at least `least` positions are."""
    best = np.sort(theirs, axis=-1)
    sure = best[:, -1] - best[:, -2] > MARGIN
    assert sure.sum() >= least, f"only {sure.sum()} of {len(sure)} positions can be compared"
    assert (ours.argmax(-1) == theirs.argmax(-1))[sure].all()


@pytest.mark.parametrize("mode", ["fast", "invariant"])
def test_prefill_and_decode_give_transformers_logits(pair, drive, mode):
    folder, model = pair
    tokens = text(SIZES["vocab_size"])
    theirs = reference(model, tokens)
    assert theirs.std() > 0.5  # a flat model would agree with anything
    driver = drive.Driver(drive.make_worker(folder, numerics__mode=mode))
    whole = driver.uncached_logits(tokens)
    decoded = driver.cached_logits(tokens, [9] + [1] * (POSITIONS - 9), range(4))
    chunked = driver.cached_logits(tokens, drive.split(POSITIONS, 13), (9, 4, 7, 5))
    for ours in (whole, decoded, chunked):
        assert_close(ours, theirs)
        assert_same_choices(ours, theirs, POSITIONS - 4)
    assert driver.tokens == 3 * POSITIONS
    # The native kernels read scattered blocks where they lie; torch's operators gather them first.
    native = "native" in driver.worker.describe()["kernel_path"]
    assert driver.results[-1].events == (() if native else (("kv_gather", "1"),))


def test_greedy_generation_equals_transformers_while_it_is_sure(pair, drive):
    folder, model = pair
    prompt = text(SIZES["vocab_size"])[:12]
    driver = drive.Driver(drive.make_worker(folder))
    ours, _ = driver.greedy(prompt, 40, table=range(4))
    logits = reference(model, prompt + ours)[len(prompt) - 1 : -1]
    best = np.sort(logits, axis=-1)
    unsure = np.flatnonzero(best[:, -1] - best[:, -2] <= MARGIN)
    compared = int(unsure[0]) if len(unsure) else 40
    assert compared >= 8, f"only {compared} of 40 tokens can be compared"
    assert ours[:compared] == logits.argmax(-1)[:compared].tolist()


@pytest.mark.smollm2
def test_smollm2_logits_and_choices(smollm2, drive):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    tokens = tokenizer(
        "The printmaker pulls an impression from a fresh print to check the plate. " * 6
    ).input_ids
    tokens = tokens[:POSITIONS]
    assert len(tokens) == POSITIONS
    theirs = reference(model, tokens)
    del model
    for mode in ("fast", "invariant"):
        driver = drive.Driver(drive.make_worker(smollm2, blocks=4, numerics__mode=mode))
        ours = driver.cached_logits(tokens, [40] + [1] * 24, range(4))
        # 30 layers deep and with logits up to 38, the library's own cached and whole passes differ by 6e-5.
        np.testing.assert_allclose(ours, theirs, atol=5e-4, rtol=1e-4)
        assert_same_choices(ours, theirs, POSITIONS - 2)
