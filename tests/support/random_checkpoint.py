"""Small random checkpoints in the layout of transformers, written without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# Deliberately awkward: 172 is no multiple of any vector, 259 is odd, 3 query heads share a kv head.
SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 172,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 259,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write(folder: Path, family: str, **changes: Any) -> Path:
    """Write config.json and model.safetensors of a random model and return `folder`."""
    config = SIZES | changes | {"model_type": family, "architectures": [ARCHITECTURES[family]]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors(config, family), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tensors(config: dict[str, Any], family: str) -> dict[str, torch.Tensor]:
    """Weights scaled so that logits spread over a few units; biases and q/k norms where the family has them."""
    draw = torch.Generator().manual_seed(11)
    hidden, width, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim

    def matrix(out: int, inputs: int) -> torch.Tensor:
        return torch.randn(out, inputs, generator=draw) * (1.5 / inputs**0.5)

    def near_one(size: int) -> torch.Tensor:
        return 1.0 + 0.1 * torch.randn(size, generator=draw)

    named = {
        "model.embed_tokens.weight": torch.randn(config["vocab_size"], hidden, generator=draw) * 0.3,
        "model.norm.weight": near_one(hidden),
    }
    if not config["tie_word_embeddings"]:
        named["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    for index in range(config["num_hidden_layers"]):
        layer, attn = f"model.layers.{index}.", f"model.layers.{index}.self_attn."
        named |= {
            f"{layer}input_layernorm.weight": near_one(hidden),
            f"{layer}post_attention_layernorm.weight": near_one(hidden),
            f"{layer}mlp.gate_proj.weight": matrix(width, hidden),
            f"{layer}mlp.up_proj.weight": matrix(width, hidden),
            f"{layer}mlp.down_proj.weight": matrix(hidden, width),
            f"{attn}q_proj.weight": matrix(q, hidden),
            f"{attn}k_proj.weight": matrix(kv, hidden),
            f"{attn}v_proj.weight": matrix(kv, hidden),
            f"{attn}o_proj.weight": matrix(hidden, q),
        }
        if family == "qwen2" or config.get("attention_bias"):
            for name, size in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
                named[f"{attn}{name}.bias"] = 0.2 * torch.randn(size, generator=draw)
        if family == "qwen3":
            named |= {f"{attn}q_norm.weight": near_one(dim), f"{attn}k_norm.weight": near_one(dim)}
    return named
