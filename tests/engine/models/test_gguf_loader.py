"""GGUF to Hugging Face: dequantisation, rotary order, names, configuration."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from intaglio.errors import ModelError
from intaglio.models.gguf_loader import GgufModel, hugging_face_name, undo_rotary_order
from intaglio.models.gguf_tokenizer import tokenizer_document, tokenizer_settings


def test_every_weight_arrives_under_its_name_and_shape(small_gguf):
    read = dict(GgufModel(small_gguf.path).tensors())
    assert set(read) == set(small_gguf.weights)
    for name, weight in small_gguf.weights.items():
        assert read[name].shape == weight.shape
        assert read[name].dtype == np.float32
        assert read[name].flags["C_CONTIGUOUS"]


@pytest.mark.parametrize(
    "kind, bound",
    [
        ("F32", 0.0),
        ("F16", 2**-11),
        ("Q8_0", 1 / 254 + 2**-11),
        ("Q4_1", 1 / 30 + 2**-9),
        ("Q4_0", 1 / 8 + 2**-10),
    ],
)
def test_weights_are_within_half_a_quantisation_step(small_gguf, kind, bound):
    read = dict(GgufModel(small_gguf.path).tensors())
    names = [name for name, k in small_gguf.kinds.items() if k == kind]
    assert names
    for name in names:
        true = small_gguf.weights[name].reshape(-1, 32)
        got = read[name].reshape(-1, 32)
        span = np.ptp(true, axis=1) if kind == "Q4_1" else np.abs(true).max(axis=1)
        limit = np.abs(true) * bound if kind == "F16" else span[:, None] * bound
        assert (np.abs(got - true) <= limit + 1e-7).all()


def test_q4_1_blocks_are_read_as_the_format_says(small_gguf):
    """Q4_1: a block of 32 is fp16 d, fp16 m, 16 bytes; value = d * nibble + m, low nibbles first."""
    reader = gguf.GGUFReader(small_gguf.path)
    tensor = next(t for t in reader.tensors if t.name == "blk.1.ffn_down.weight")
    blocks = np.array(tensor.data, dtype=np.uint8).reshape(-1, 20)
    scale = blocks[:, 0:2].copy().view(np.float16).astype(np.float64)
    offset = blocks[:, 2:4].copy().view(np.float16).astype(np.float64)
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    expected = (scale * nibbles + offset).reshape(64, 96)
    read = dict(GgufModel(small_gguf.path).tensors())["model.layers.1.mlp.down_proj.weight"]
    np.testing.assert_allclose(read, expected, rtol=1e-7, atol=1e-9)


def test_query_and_key_rows_leave_llama_cpp_order():
    head = np.arange(8, dtype=np.float32)[:, None] * np.ones((1, 3), dtype=np.float32)
    stored = head[[0, 4, 1, 5, 2, 6, 3, 7]]
    two_heads = np.concatenate([stored, stored + 100])
    np.testing.assert_array_equal(undo_rotary_order(two_heads, 2), np.concatenate([head, head + 100]))


def test_state_dict_equals_that_of_transformers_own_gguf_loader(small_gguf):
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    model = GgufModel(small_gguf.path)
    target = LlamaForCausalLM(LlamaConfig(**model.config()))
    theirs = load_gguf_checkpoint(str(small_gguf.path), return_tensors=True, model_to_load=target)["tensors"]
    compared = 0
    for name, weight in model.tensors():
        np.testing.assert_array_equal(weight, theirs[name].numpy(), err_msg=name)
        compared += 1
    assert compared == len(small_gguf.weights)


def test_configuration(small_gguf):
    config = GgufModel(small_gguf.path).config()
    assert config["num_hidden_layers"] == 2
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_parameters"] == {"rope_theta": 100000.0, "rope_type": "default"}
    assert config["tie_word_embeddings"] is True
    assert (config["bos_token_id"], config["eos_token_id"], config["vocab_size"]) == (1, 2, 280)


def test_tokenizer_carries_specials_template_and_digit_splitting(small_gguf):
    model = GgufModel(small_gguf.path)
    document = tokenizer_document(model)
    assert [row["content"] for row in document["added_tokens"]] == [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    ]
    assert all(row["special"] for row in document["added_tokens"])
    assert [s["type"] for s in document["pre_tokenizer"]["pretokenizers"]] == ["Digits", "ByteLevel"]
    settings = tokenizer_settings(model)
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert "im_start" in settings["chat_template"]


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "rope_freqs.weight", "blk.0.ffn_gate_inp.weight", "x"])
def test_unknown_weights_are_refused(name):
    with pytest.raises(ModelError, match="not part of a Llama"):
        hugging_face_name(name)


def test_damaged_files_are_refused(small_gguf, tmp_path):
    data = small_gguf.path.read_bytes()
    for name, damaged in {"magic": b"XXXX" + data[4:], "short": data[: len(data) // 2], "empty": b""}.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(damaged)
        with pytest.raises(ModelError):
            dict(GgufModel(path).tensors())


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_damaged_file_is_a_model_error_wherever_the_damage_is(small_gguf, tmp_path):
    """One byte changed in the header and the metadata, and files cut short: read as ever, or a ModelError."""
    whole, draw = small_gguf.path.read_bytes(), np.random.default_rng(5)
    start = int(GgufModel(small_gguf.path)._reader.data_offset)
    refused = 0
    for _ in range(400):
        changed = bytearray(whole)
        changed[draw.integers(start)] ^= 1 << draw.integers(8)
        path = tmp_path / "damaged.gguf"
        path.write_bytes(changed)
        try:
            model = GgufModel(path)
            model.config()
            list(model.tensors())
        except ModelError:
            refused += 1
    assert refused > 100
