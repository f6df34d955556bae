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

# Beyond any real model: a damaged file must be refused before memory is asked for.
_MOST = 1 << 31
_MOST_LAYERS = 1 << 12
# transformers' own: MistralConfig, Qwen2Config and Qwen3Config.
_DEFAULT_WINDOW = 4096
_DEFAULT_FULL_LAYERS = 28


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
    """Read `folder/config.json`. Raises ModelError for a missing file, a bad value, an unknown family or feature."""
    config = _read_json(folder / "config.json")
    family = _family(config, folder)
    if config.get("quantization_config"):
        raise ModelError(f"{folder}: quantised weights are not supported; give a checkpoint in fp32 or bf16")
    heads, hidden = _whole(config, "num_attention_heads"), _whole(config, "hidden_size")
    kv_heads = _whole(config, "num_key_value_heads", heads)
    head_dim = _whole(config, "head_dim", hidden // heads)
    if heads % kv_heads or head_dim % 2:
        raise ModelError(
            f"{folder}: {heads} heads over {kv_heads} kv heads of {head_dim} do not fit together"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{folder}: activation {config['hidden_act']!r} is not supported; only silu is")
    layers = _whole(config, "num_hidden_layers", most=_MOST_LAYERS)
    bos = config.get("bos_token_id")
    return ModelSpec(
        family=family,
        layers=layers,
        hidden=hidden,
        intermediate=_whole(config, "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=_whole(config, "vocab_size"),
        max_positions=_whole(config, "max_position_embeddings", 2048),
        norm_eps=_positive(config, "rms_norm_eps", 1e-6),
        tied=_flag(config, "tie_word_embeddings"),
        rope=_rope(config, folder),
        windows=_windows(config, family, layers),
        eos_token_ids=_eos(config, folder),
        bos_token_id=None if bos is None else _token("bos_token_id", bos),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); give a complete model folder") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON ({error}); fetch the model again") from error
    if not isinstance(loaded, dict):
        raise ModelError(f"{path} holds no JSON object; fetch the model again")
    return loaded


def _family(config: dict[str, Any], folder: Path) -> str:
    names = config.get("architectures")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name in FAMILIES:
            return FAMILIES[name]
    raise ModelError(
        f"{folder}: architecture {_show(names or 'unnamed')} is not supported; supported: {', '.join(FAMILIES)}"
    )


def _whole(config: dict[str, Any], key: str, default: int | None = None, *, most: int = _MOST) -> int:
    """A size; null and missing give the default, where there is one."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ModelError(f"config.json: {key} must be a positive whole number to {most}, not {_show(value)}")
    return value


def _positive(config: dict[str, Any], key: str, default: float | None = None) -> float:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < _MOST:
        raise ModelError(f"config.json: {key} must be a positive number, not {_show(value)}")
    return float(value)


def _flag(config: dict[str, Any], key: str) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelError(f"config.json: {key} must be true or false, not {_show(value)}")
    return bool(value)


def _token(key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
        raise ModelError(f"{key} must be a token id, not {_show(value)}")
    return value


def _show(value: Any) -> str:
    return ascii(value)[:60]


def _rope(config: dict[str, Any], folder: Path) -> RopeSpec:
    # Checkpoints written before transformers 5 keep theta and scaling apart; later ones hold both in one place.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise ModelError(f"{folder}: the rotary parameters must be an object, not {_show(scaling)}")
    theta = _positive(scaling if scaling.get("rope_theta") else config, "rope_theta", 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    for where in (scaling, config):
        if _positive(where, "partial_rotary_factor", 1.0) != 1.0:
            raise ModelError(f"{folder}: a partial rotary embedding is not supported")
    if kind == "default":
        return RopeSpec(theta)
    if kind == "linear":
        return RopeSpec(theta, kind, factor=_positive(scaling, "factor"))
    if kind == "llama3":
        low, high = _positive(scaling, "low_freq_factor"), _positive(scaling, "high_freq_factor")
        if not low < high:
            raise ModelError(f"{folder}: rotary low_freq_factor {low} must be below high_freq_factor {high}")
        positions = _whole(scaling, "original_max_position_embeddings")
        return RopeSpec(theta, kind, _positive(scaling, "factor"), low, high, positions)
    raise ModelError(
        f"{folder}: rotary scaling {_show(kind)} is not supported; supported: default, linear, llama3"
    )


def _windows(config: dict[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    """Where config.json is silent, what the family's configuration in transformers says."""
    given = config.get("sliding_window", _DEFAULT_WINDOW)
    windowed = family == "mistral" or (family != "llama" and _flag(config, "use_sliding_window"))
    if given is None or not windowed:
        return (None,) * layers
    window = _whole(config, "sliding_window", _DEFAULT_WINDOW)
    types = config.get("layer_types")
    if types is None:
        first = 0 if family == "mistral" else _DEFAULT_FULL_LAYERS
        if config.get("max_window_layers") is not None and family != "mistral":
            first = _token("max_window_layers", config["max_window_layers"])
        return tuple(window if i >= first else None for i in range(layers))
    known = {"sliding_attention": window, "full_attention": None}
    if not isinstance(types, list) or len(types) != layers or any(t not in [*known] for t in types):
        raise ModelError(f"config.json: layer_types must name {layers} of {', '.join(known)}")
    return tuple(known[kind] for kind in types)


def _eos(config: dict[str, Any], folder: Path) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    generation = folder / "generation_config.json"
    if generation.is_file():
        value = _read_json(generation).get("eos_token_id", value)
    if value is None:
        return ()
    return tuple(_token("eos_token_id", v) for v in (value if isinstance(value, list) else [value]))
