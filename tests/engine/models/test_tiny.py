"""The tiny model: what ships, and that training it is deterministic and does learn."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from intaglio.errors import ModelError
from intaglio.intake.tokenizer import Tokenizer
from intaglio.models import catalogue
from intaglio.models.bpe import train_bpe
from intaglio.models.tiny import Recipe, documentation, train_tiny

SHORT = Recipe(steps=3, batch=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A model of a few steps; most tests only need its files."""
    folder = tmp_path_factory.mktemp("tiny") / "short"
    return folder, train_tiny(folder, recipe=SHORT, progress=False)


def test_the_shipped_model_keeps_its_limits(tiny_model):
    weights = tiny_model / "model.safetensors"
    assert weights.stat().st_size <= 2_000_000
    report = json.loads((tiny_model / "training.json").read_text())
    assert report["parameters"] <= 1_000_000
    assert report["weights_sha256"] == catalogue.sha256_file(weights)
    assert report["held_out_loss"] < 2.1
    config = json.loads((tiny_model / "config.json").read_text())
    assert config["vocab_size"] == 512
    assert config["max_position_embeddings"] >= 512
    assert "Apache-2.0" in (tiny_model / "README.md").read_text()


def test_the_shipped_weights_reach_the_reported_held_out_loss(tiny_model):
    import torch
    from transformers import AutoModelForCausalLM

    report = json.loads((tiny_model / "training.json").read_text())
    _, held = documentation()
    if report["text_bytes"] != sum(len(text.encode()) for _, text in documentation()[0]):
        pytest.skip(f"this Python's documentation is not that of Python {report['python']}")
    tokenizer = Tokenizer(tiny_model)
    ids = [
        i
        for _, text in held
        for i in tokenizer.encode(f"<|begin|>{text}<|end|>", add_bos=False, parse_special=True)
    ]
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    assert sum(p.numel() for p in model.parameters()) == report["parameters"]
    total = 0.0
    with torch.inference_mode():
        for start in range(0, len(ids) - 1, 512):
            window = torch.tensor(ids[start : start + 513])
            scores = model(input_ids=window[None, :-1]).logits[0].log_softmax(-1)
            total -= scores.gather(1, window[1:, None]).sum().item()
    assert total / (len(ids) - 1) == pytest.approx(report["held_out_loss"], abs=1e-3)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(trained, tmp_path):
    import torch

    folder, report = trained
    torch.manual_seed(99)  # the state of the global generator must not matter, nor be changed
    before = torch.get_rng_state()
    again = train_tiny(tmp_path / "again", recipe=SHORT, progress=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert again == report
    assert catalogue.file_hashes(tmp_path / "again") == catalogue.file_hashes(folder)
    train_tiny(tmp_path / "other", recipe=Recipe(seed=1, steps=3, batch=1), progress=False)
    ours, other = catalogue.fingerprint(folder), catalogue.fingerprint(tmp_path / "other")
    assert ours["weights"] != other["weights"]
    assert ours["tokenizer"] == other["tokenizer"]


def test_training_learns(tmp_path):
    report = train_tiny(tmp_path / "m", recipe=Recipe(steps=40, batch=1, warmup=5), progress=False)
    assert report["held_out_loss"] < math.log(512) - 0.7


def test_what_is_written_is_a_model_folder(trained):
    folder, report = trained
    assert catalogue.resolve(folder) == folder.resolve()
    assert json.loads((folder / "training.json").read_text()) == report
    assert report["recipe"]["steps"] == 3
    tokenizer = Tokenizer(folder)
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (512, 0, (1,))


def test_a_folder_in_use_is_not_overwritten(trained):
    folder, _ = trained
    before = catalogue.file_hashes(folder)
    with pytest.raises(ModelError, match="not empty"):
        train_tiny(folder, recipe=SHORT, progress=False)
    assert catalogue.file_hashes(folder) == before


def test_held_out_topics_are_not_trained_on():
    train, held = documentation()
    assert held and len(held) < len(train) / 5
    assert not {title for title, _ in train} & {title for title, _ in held}


def test_bpe_covers_every_byte_and_has_the_size_asked_for():
    tokenizer = train_bpe(["the cat sat on the mat and the hat"] * 3, 262, ("<a>", "<b>"))
    assert tokenizer.get_vocab_size() == 262
    assert [tokenizer.token_to_id(token) for token in ("<a>", "<b>")] == [0, 1]
    text = "".join(map(chr, range(256))) + "你好 🎉"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("x").ids[0] == 0


@pytest.mark.parametrize("size", [100, 5000])
def test_bpe_refuses_a_size_that_cannot_be(size):
    with pytest.raises(ModelError):
        train_bpe(["a few words only"], size, ("<a>",))
