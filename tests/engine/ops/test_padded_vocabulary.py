"""A checkpoint may have more rows than its tokenizer has tokens. Such rows are computed, and never chosen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from intaglio.config import parse_overrides
from intaglio.engine import Engine
from intaglio.intake.request import SamplingParams

TOKENS, PADDING = 512, 3
PROMPTS = [[5, 250, 17, 99], [301, 42, 8, 1, 77, 76]]


@pytest.fixture(scope="module")
def padded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with three rows more, each of which beats every token whose logit it multiplies."""
    folder = tmp_path_factory.mktemp("padded") / "model"
    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in weights:
            assert weights[name].shape[0] == TOKENS
            loud = 8 * weights[name][[11, 200, 403]]
            weights[name] = torch.cat([weights[name], loud]).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["vocab_size"] = TOKENS + PADDING
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("mode", ["fast", "invariant"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=16, ignore_eos=True),
        SamplingParams(max_tokens=16, ignore_eos=True, logprobs=5),
        SamplingParams(max_tokens=16, ignore_eos=True, temperature=2.0, seed=3),
        SamplingParams(max_tokens=16, ignore_eos=True, temperature=1.0, top_p=0.9, repetition_penalty=1.2),
    ],
    ids=["greedy", "logprobs", "warm", "penalty"],
)
def test_rows_that_only_pad_the_vocabulary_are_never_chosen(
    padded: Path, mode: str, params: SamplingParams
) -> None:
    """Field case sampling-23: the padding would win in every step where it is looked at."""
    fixed = [f"model={padded}", "dtype=fp32", "threads.count=1", f"numerics.mode={mode}"]
    with Engine(parse_overrides(fixed)) as engine:
        outputs = engine.generate(PROMPTS, params, return_logits=True)
    wins = 0
    for output in outputs:
        assert output.error is None
        assert len(output.token_ids) == 16
        assert max(output.token_ids) < TOKENS
        named = [token for top in output.top_logprobs for token in top]
        assert len(named) == 16 * (params.logprobs or 0)
        assert max(named, default=0) < TOKENS
        for token, logprob, row in zip(output.token_ids, output.logprobs, output.logits, strict=True):
            assert row.shape == (TOKENS + PADDING,)  # logits stay what the model says
            wins += int(np.argmax(row)) >= TOKENS
            if params.temperature == 0.0 and params.repetition_penalty == 1.0:
                assert token == int(np.argmax(row[:TOKENS]))
                known = row[:TOKENS].astype(np.float64)
                assert logprob == pytest.approx(known[token] - np.logaddexp.reduce(known), abs=1e-4)
    assert wins > 0


def test_a_model_without_padding_is_not_copied(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its rows are tokens, so that a choice reads the very logits that were computed."""
    fixed = [f"model={tiny_model}", "dtype=fp32", "threads.count=1", "numerics.mode=fast"]
    with Engine(parse_overrides(fixed)) as engine:
        worker = engine._loaded.runner.worker
        seen, run, choose = [], worker._backend.run, worker._backend.choose

        def computed(rows: object, store: object) -> object:
            result = run(rows, store)
            seen.append(result[0].data_ptr())
            return result

        def chosen(logits: torch.Tensor, picks: object) -> object:
            seen.append(logits.data_ptr())
            return choose(logits, picks)

        monkeypatch.setattr(worker._backend, "run", computed)
        monkeypatch.setattr(worker._backend, "choose", chosen)
        engine.generate([PROMPTS[0]], SamplingParams(max_tokens=3, ignore_eos=True))
    assert len(seen) == 6
    assert seen[::2] == seen[1::2]
