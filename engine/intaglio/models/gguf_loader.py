"""A Llama model out of a GGUF file: configuration and weights as Hugging Face names and shapes.

The file format and its block layouts are read by the `gguf` package (memory-mapped, dequantised with numpy);
what is ours is the mapping to a Hugging Face Llama folder, above all the order of the rotary pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from intaglio.errors import ModelError

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.weight")

_READABLE = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


class GgufModel:
    """An open GGUF file of the `llama` architecture.

    Raises ModelError when the file is damaged, of another architecture, or holds what is not supported.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ModelError(f"cannot read {path.name} as GGUF: {error}; fetch it again") from error
        architecture = self.metadata("general.architecture")
        if architecture != "llama":
            raise ModelError(f"{path.name} is of architecture '{architecture}'; only llama is supported")
        with _reading("the number of heads"):
            self._heads = int(self.metadata("llama.attention.head_count"))
            self._kv_heads = int(self.metadata("llama.attention.head_count_kv", self._heads))

    def metadata(self, key: str, default: Any = None) -> Any:
        """One metadata value as plain Python. Raises ModelError when it is absent and has no default."""
        with _reading(f"'{key}'"):
            field = self._reader.get_field(key)
            if field is not None:
                return field.contents()
        if default is None:
            raise ModelError(f"the GGUF file lacks '{key}'; use another file")
        return default

    def config(self) -> dict[str, Any]:
        """The content of config.json (transformers' LlamaConfig)."""
        with _reading("the configuration"):
            return self._config()

    def _config(self) -> dict[str, Any]:
        hidden = int(self.metadata("llama.embedding_length"))
        head_dim = int(self.metadata("llama.rope.dimension_count", hidden // self._heads))
        theta = float(self.metadata("llama.rope.freq_base", 10000.0))
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": int(self.metadata("tokenizer.ggml.bos_token_id")),
            "dtype": "float32",
            "eos_token_id": int(self.metadata("tokenizer.ggml.eos_token_id")),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": int(self.metadata("llama.feed_forward_length")),
            "max_position_embeddings": int(self.metadata("llama.context_length")),
            "mlp_bias": False,
            "num_attention_heads": self._heads,
            "num_hidden_layers": int(self.metadata("llama.block_count")),
            "num_key_value_heads": self._kv_heads,
            "rms_norm_eps": _shortest(self.metadata("llama.attention.layer_norm_rms_epsilon")),
            "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
            "tie_word_embeddings": "output.weight" not in self.tensor_names(),
            "use_cache": True,
            "vocab_size": len(self.metadata("tokenizer.ggml.tokens")),
        }

    def tensor_names(self) -> list[str]:
        """The names of the weights as the file spells them."""
        return [tensor.name for tensor in self._reader.tensors]

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every weight as (Hugging Face name, float32 array), dequantised one at a time."""
        for tensor in self._reader.tensors:
            name, part = hugging_face_name(tensor.name)
            kind = tensor.tensor_type.name
            if kind not in _READABLE:
                raise ModelError(
                    f"weight '{tensor.name}' is of type {kind}; use a file of another quantisation"
                )
            with _reading(f"weight '{tensor.name}'"):
                values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                values = np.ascontiguousarray(values, dtype=np.float32)
                if part == "attn_q":
                    values = undo_rotary_order(values, self._heads)
                elif part == "attn_k":
                    values = undo_rotary_order(values, self._kv_heads)
            yield name, values


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Whatever a damaged file makes the reader stumble over is said to be damage of `what`."""
    try:
        yield
    except (ValueError, ArithmeticError, TypeError, LookupError) as error:
        raise ModelError(f"{what} of the GGUF file is damaged: {error}; fetch it again") from error


def hugging_face_name(name: str) -> tuple[str, str]:
    """(Hugging Face name, GGUF part) of a weight's GGUF name. Raises ModelError for an unknown one."""
    if match := _LAYER_TENSOR.fullmatch(name):
        layer, part = match.groups()
        if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight", part
    part = name.removesuffix(".weight")
    if part in _TOP_NAMES and name.endswith(".weight"):
        return f"{_TOP_NAMES[part]}.weight", part
    raise ModelError(f"weight '{name}' is not part of a Llama model that can be converted")


def undo_rotary_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection [heads * head_dim, in] from llama.cpp's order to Hugging Face's.

    llama.cpp rotates neighbouring rows (2i, 2i+1) of a head, Hugging Face rows (i, i + head_dim/2), so its
    converter interleaves the two halves of every head; this separates them again.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3)).reshape(rows, columns)


def _shortest(value: float) -> float:
    """A float32 metadata value as the shortest decimal that reads back as the same float32 (1e-05)."""
    return float(str(np.float32(value)))
