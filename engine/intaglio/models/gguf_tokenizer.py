"""The tokenizer inside a GGUF file as Hugging Face's tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from typing import Any

from intaglio.errors import ModelError
from intaglio.models.gguf_loader import GgufModel

# llama.cpp's token types (its `llama_token_type`).
_CONTROL = 3
_USER_DEFINED = 4

_DIGITS = {"type": "Digits", "individual_digits": True}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}

# llama.cpp names the pre-tokenizer; the name stands for these steps. SmolLM writes every digit by itself.
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTE_LEVEL]},
    "gpt-2": _BYTE_LEVEL,
}


def tokenizer_document(model: GgufModel) -> dict[str, Any]:
    """The content of tokenizer.json. Raises ModelError unless it is a byte-level BPE with a known splitter."""
    kind = model.metadata("tokenizer.ggml.model")
    splitter = model.metadata("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or splitter not in _PRE_TOKENIZERS:
        raise ModelError(f"the GGUF file's tokenizer ({kind}, {splitter}) is not supported")
    tokens: list[str] = model.metadata("tokenizer.ggml.tokens")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, model.metadata("tokenizer.ggml.token_type")),
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[splitter],
        "post_processor": None,
        "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in model.metadata("tokenizer.ggml.merges")],
        },
    }


def tokenizer_settings(model: GgufModel) -> dict[str, Any]:
    """The content of tokenizer_config.json, with the chat template."""
    tokens: list[str] = model.metadata("tokenizer.ggml.tokens")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(model.metadata("llama.context_length")),
        "chat_template": model.metadata("tokenizer.chat_template"),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        settings[f"{name}_token"] = tokens[int(model.metadata(f"tokenizer.ggml.{key}_token_id"))]
    return settings


def _added_tokens(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "id": index,
            "content": tokens[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for index, kind in enumerate(types)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
