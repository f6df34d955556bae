"""What a checkpoint's config.json says about the network: sizes, rotary embedding, windows, end tokens.

Supported: the Llama family as transformers writes it (Llama, Mistral, Qwen2, Qwen3). Anything that would change
the numbers and is not understood is refused with a ModelError instead of being ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.errors import ModelError

FAMILIES: dict[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding. `kind` is default, linear or llama3; the rest are the fields of that kind."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes of one decoder. `windows` holds per layer the attention window in tokens, or None for all."""

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    norm_eps: float
    tied: bool
    rope: RopeSpec
    windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    @property
    def groups(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the keys (or of the values) of one token."""
        return self.kv_heads * self.head_dim

    def linear_macs_per_token(self) -> int:
        """Multiply-adds of one token through all layers' linears, head excluded."""
        attention = self.hidden * (self.q_width + 2 * self.kv_width) + self.q_width * self.hidden
        return self.layers * (attention + 3 * self.hidden * self.intermediate)


def read_spec(folder: Path) -> ModelSpec:
    """Read `folder/config.json`. Raises ModelError for a missing file, an unknown family or feature."""
    config = _read_json(folder / "config.json")
    family = _family(config, folder)
    heads = _whole(config, "num_attention_heads")
    hidden = _whole(config, "hidden_size")
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"{folder}: {heads} heads over {kv_heads} kv heads of {head_dim} do not fit together"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{folder}: activation {config['hidden_act']!r} is not supported; only silu is")
    layers = _whole(config, "num_hidden_layers")
    return ModelSpec(
        family=family,
        layers=layers,
        hidden=hidden,
        intermediate=_whole(config, "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=_whole(config, "vocab_size"),
        max_positions=int(config.get("max_position_embeddings", 2048)),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tied=bool(config.get("tie_word_embeddings", False)),
        rope=_rope(config, folder),
        windows=_windows(config, family, layers),
        eos_token_ids=_eos(config, folder),
        bos_token_id=config.get("bos_token_id"),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); give a complete model folder") from error
    except ValueError as error:
        raise ModelError(f"{path} is not JSON ({error}); fetch the model again") from error
    if not isinstance(loaded, dict):
        raise ModelError(f"{path} holds no JSON object; fetch the model again")
    return loaded


def _family(config: dict[str, Any], folder: Path) -> str:
    names = config.get("architectures") or []
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name]
    raise ModelError(
        f"{folder}: architecture {', '.join(map(str, names)) or 'unnamed'} is not supported; "
        f"supported: {', '.join(FAMILIES)}"
    )


def _whole(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config.json: {key} must be a positive whole number, not {value!r}")
    return value


def _rope(config: dict[str, Any], folder: Path) -> RopeSpec:
    # Checkpoints written before transformers 5 keep theta and scaling apart; later ones hold both in one place.
    scaling: dict[str, Any] = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    partial = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if float(partial or 1.0) != 1.0:
        raise ModelError(f"{folder}: a partial rotary embedding ({partial}) is not supported")
    if kind == "default":
        return RopeSpec(theta)
    if kind == "linear":
        return RopeSpec(theta, kind, factor=float(scaling["factor"]))
    if kind == "llama3":
        return RopeSpec(
            theta,
            kind,
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_positions=int(scaling["original_max_position_embeddings"]),
        )
    raise ModelError(
        f"{folder}: rotary scaling '{kind}' is not supported; supported: default, linear, llama3"
    )


def _windows(config: dict[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window")
    if window is None or family == "llama" or (family != "mistral" and not config.get("use_sliding_window")):
        return (None,) * layers
    types = config.get("layer_types")
    if types is None:
        first = 0 if family == "mistral" else int(config.get("max_window_layers", 0))
        return tuple(int(window) if i >= first else None for i in range(layers))
    return tuple(int(window) if t == "sliding_attention" else None for t in types)


def _eos(config: dict[str, Any], folder: Path) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    generation = folder / "generation_config.json"
    if generation.is_file():
        value = _read_json(generation).get("eos_token_id", value)
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, list) else (int(value),)
