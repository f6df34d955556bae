"""A model folder is input: whatever stands in its files, the answer is a ModelError or the model it names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from intaglio.compute.layers import Layout
from intaglio.compute.spec import read_spec
from intaglio.compute.weights import Layouts, load_weights
from intaglio.config import from_flat
from intaglio.engine import Engine
from intaglio.errors import ModelError
from intaglio.intake.tokenizer import Tokenizer
from intaglio.models import catalogue

GARBAGE: list[Any] = [
    "x", "", -1, 0, 1.5, True, 10**30, [], {}, [None], [[]], float("nan"), float("inf"), {"type": "linear"}, {"rope_type": "llama3"},
    {"rope_type": "llama3", "factor": "x"}, {"rope_type": ["linear"]}, {"vocab": []}, [{"id": 1}], [{}], None,
]  # fmt: skip
SIZES = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "max_position_embeddings", "rms_norm_eps",
)  # fmt: skip
OTHERS = (
    "architectures", "rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "sliding_window", "layer_types",
    "max_window_layers", "use_sliding_window", "tie_word_embeddings", "eos_token_id", "bos_token_id", "hidden_act",
)  # fmt: skip


@pytest.fixture
def copy(tiny_model: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_model, tmp_path / "m")
    return tmp_path / "m"


def load(folder: Path) -> torch.Tensor:
    rows = Layouts(Layout.ROWS, Layout.ROWS)
    return load_weights(folder, read_spec(folder), torch.float32, torch.device("cpu"), rows).head.weight


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def loads_or_refuses(action: Callable[[], object]) -> bool:
    """Whether the model loaded. Anything but a ModelError fails the test."""
    try:
        action()
    except ModelError:
        return False
    return True


@pytest.mark.parametrize("key", SIZES)
def test_a_size_that_is_none_is_refused_before_memory_is_asked_for(copy: Path, key: str) -> None:
    for value in GARBAGE:
        edit(copy / "config.json", **{key: value})
        loaded = loads_or_refuses(lambda: load(copy))
        optional = value is None and key in (
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
            "rms_norm_eps",
        )
        assert not loaded or optional or (key == "rms_norm_eps" and value == 1.5), (key, value)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
@pytest.mark.parametrize("key", OTHERS)
def test_any_value_in_config_loads_or_is_refused(
    checkpoint: Callable[..., Path], tmp_path: Path, family: str, key: str
) -> None:
    shutil.copytree(checkpoint(family), tmp_path / "m")
    original = (tmp_path / "m" / "config.json").read_text()
    refused = 0
    for value in GARBAGE:
        (tmp_path / "m" / "config.json").write_text(original)
        edit(tmp_path / "m" / "config.json", **({"use_sliding_window": family == "qwen2"} | {key: value}))
        refused += not loads_or_refuses(lambda: read_spec(tmp_path / "m"))
    applies = key not in ("sliding_window", "layer_types", "max_window_layers", "use_sliding_window") or (
        family == "qwen2" or (family == "mistral" and key in ("sliding_window", "layer_types"))
    )
    assert bool(refused) == applies


@pytest.mark.parametrize(
    "key", ["added_tokens", "model", "decoder", "pre_tokenizer", "post_processor", "normalizer"]
)
def test_any_value_in_a_tokenizer_loads_or_is_refused(copy: Path, key: str) -> None:
    refused = 0
    original = (copy / "tokenizer.json").read_text()
    for value in [*GARBAGE, {"type": "Sequence", "decoders": [1]}, {"type": "Replace"}, {"type": "Sequence"}]:
        (copy / "tokenizer.json").write_text(original)
        edit(copy / "tokenizer.json", **{key: value})
        refused += not loads_or_refuses(lambda: Tokenizer(copy))
    assert refused > 5


def test_a_template_that_is_no_text_is_refused(copy: Path) -> None:
    (copy / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match="chat_template"):
        Tokenizer(copy)


def test_a_quantised_checkpoint_is_refused_instead_of_read_as_plain_numbers(copy: Path) -> None:
    edit(copy / "config.json", quantization_config={"quant_method": "fp8"})
    with pytest.raises(ModelError, match="quantised"):
        read_spec(copy)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float8_e4m3fn, torch.complex64])
@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"])
def test_numbers_that_need_scales_are_refused(copy: Path, dtype: torch.dtype, name: str) -> None:
    held = load_file(copy / "model.safetensors")
    save_file(held | {name: held[name].to(dtype)}, copy / "model.safetensors")
    with pytest.raises(ModelError, match=name):
        load(copy)


def other_weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor * 2 for name, tensor in load_file(folder / "model.safetensors").items()}


def test_only_the_files_that_identify_the_model_are_loaded(copy: Path, tiny_model: Path) -> None:
    """A second file with the same tensors, or an index beside a whole file, changes neither hash nor weights."""
    expected, named = load(tiny_model), catalogue.fingerprint(tiny_model)["weights"]
    save_file(other_weights(copy), copy / "zz-other.safetensors")
    assert catalogue.fingerprint(copy)["weights"] == named
    assert torch.equal(load(copy), expected)
    index = {"weight_map": dict.fromkeys(other_weights(copy), "zz-other.safetensors")}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(load(copy), expected)
    (copy / "model.safetensors").unlink()
    assert not torch.equal(load(copy), expected)
    assert catalogue.fingerprint(copy)["weights"] != named


def test_a_tensor_in_two_shards_is_refused(copy: Path) -> None:
    held = load_file(copy / "model.safetensors")
    for file in ("a.safetensors", "b.safetensors"):
        save_file(held, copy / file)
    (copy / "model.safetensors").unlink()
    names = sorted(held)
    index = {"weight_map": {name: f"{'ab'[i % 2]}.safetensors" for i, name in enumerate(names)}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="both in"):
        load(copy)


def test_mistral_without_a_window_has_that_of_its_family(
    checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    shutil.copytree(checkpoint("mistral"), tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text()).get("sliding_window", 0) == 0
    expected = transformers.MistralConfig().sliding_window
    assert read_spec(tmp_path / "m").windows == (expected,) * 2
    edit(tmp_path / "m" / "config.json", sliding_window=None)
    assert read_spec(tmp_path / "m").windows == (None, None)


def test_the_engine_says_what_is_wrong_with_a_model(copy: Path) -> None:
    edit(copy / "config.json", vocab_size=10**9)
    with pytest.raises(ModelError, match=r"config\.json says"):
        Engine(from_flat({"model": str(copy), "threads.count": 1}))
